#pragma once

#include <string>
#include <vector>

#include "trireme/train/restore_options.h"

namespace torch::nn {
class Module;
}

namespace trireme {

// Writes the parameters and buffers of a module to a safetensors file, under the names of PyTorch's
// state_dict(): "layer1.0.conv1.weight". The file appears whole under its name or not at all, and
// replaces an older one. The values of a module on parameter servers are fetched from there; steps
// that run meanwhile may be seen in some of them and not in others. Throws Error if the file cannot
// be written, or if a function is being captured.
//
// Under MultiWorkerMirroredStrategy all workers call it, and worker 0 writes the file, which is
// there when the call returns anywhere.
//
//   tr::save_state_dict(net, "net.safetensors");
//
// In Python: net.load_state_dict(safetensors.torch.load_file("net.safetensors")).
void save_state_dict(const torch::nn::Module& module, const std::string& path);

// Sets the parameters and buffers of a module from safetensors. `path` is a file, a
// model.safetensors.index.json, or a folder with that index or with a model.safetensors. The module
// may be on parameter servers. The state of optimizers stays as it is.
//
// Throws Error, which lists all names that are only in the module or only in the file, and all
// shapes and dtypes that differ, before anything is changed. With `partial`, such tensors stay as
// they are, but at least one must agree.
//
// Returns the names in the module that were not set, which is empty unless the options say so.
//
// Under MultiWorkerMirroredStrategy all workers call it and read the file, which must be in a
// folder that they share, or be the same on every machine. If one of them cannot read it, all throw
// its error, and FAILED_PRECONDITION if it reads other values than worker 0. No worker changes
// anything then.
std::vector<std::string> load_state_dict(torch::nn::Module& module, const std::string& path,
                                         const RestoreOptions& options = {});

// Does the same for a module holder, such as torch::nn::Linear, and for a shared pointer to a
// module.
template <typename Holder>
  requires requires(const Holder& holder) { *holder; }
void save_state_dict(const Holder& holder, const std::string& path) {
  save_state_dict(static_cast<const torch::nn::Module&>(*holder), path);
}

// Does the same for a module holder, and for a shared pointer to a module.
template <typename Holder>
  requires requires(Holder& holder) { *holder; }
std::vector<std::string> load_state_dict(Holder holder, const std::string& path,
                                         const RestoreOptions& options = {}) {
  return load_state_dict(static_cast<torch::nn::Module&>(*holder), path, options);
}

}  // namespace trireme
