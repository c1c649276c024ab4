// The module that says which of the others this CPU can run. Like cpu.cpp, it is compiled for any CPU of its kind.
#include "../cpu.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

NB_MODULE(cpu, module) {
    module.def("known_levels", &autojacobin::known_levels, "The levels of this kind of processor, lowest first.");
    module.def("levels", &autojacobin::levels, "The levels that this CPU can run, lowest first.");
}
