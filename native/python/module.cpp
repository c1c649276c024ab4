// The module of one level. Each family of kernels has a file beside this one, so that they are compiled side by side,
// and a change of one family compiles one file.
#include <nanobind/nanobind.h>

namespace autojacobin {
void bind_codes(nanobind::module_& module);
void bind_lists(nanobind::module_& module);
void bind_search(nanobind::module_& module);
void bind_training(nanobind::module_& module);
void bind_vectors(nanobind::module_& module);
}  // namespace autojacobin

NB_MODULE(AUTOJACOBIN_MODULE, module) {
    autojacobin::bind_codes(module);
    autojacobin::bind_lists(module);
    autojacobin::bind_search(module);
    autojacobin::bind_training(module);
    autojacobin::bind_vectors(module);
}
