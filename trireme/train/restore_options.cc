#include "trireme/train/restore_options.h"

#include <fnmatch.h>

#include <algorithm>

namespace trireme::internal {

bool is_selected(const RestoreOptions& options, const std::string& name) {
  return options.patterns.empty() ||
         std::any_of(options.patterns.begin(), options.patterns.end(),
                     [&](const std::string& pattern) {
                       return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
                     });
}

}  // namespace trireme::internal
