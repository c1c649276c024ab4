#pragma once

#include <string>
#include <vector>

namespace autojacobin {

// The levels of this kind of processor, lowest first: the names that AUTOJACOBIN_LEVEL and CMakeLists.txt use.
std::vector<std::string> known_levels();

// Those that this CPU and its operating system can run, lowest first.
std::vector<std::string> levels();

}  // namespace autojacobin
