#include "trireme/ps/save_service.h"

#include <utility>

#include "trireme/ps/load_call.h"

namespace trireme::internal {
namespace {

constexpr Roles kSavers = {Role::kChief, Role::kWorker, Role::kClient};

// Makes a method that runs on the threads of the saves, since it uses the disk.
template <typename Body>
Method disk_method(HostedSaves& saves, const char* name, Repeats repeats, Body body) {
  return {name, kSavers, repeats, [&saves, body](ServerCall call) {
            saves.submit(
                [&saves, body, call = std::move(call)]() mutable { body(saves, std::move(call)); });
          }};
}

}  // namespace

std::vector<Method> save_methods(HostedSaves& saves) {
  return {
      disk_method(saves, kBeginSave, Repeats::kAnsweredOnce,
                  [](HostedSaves& all, ServerCall call) { all.begin(std::move(call)); }),
      {kWaitSave, kSavers, Repeats::kHarmless,
       [&saves](ServerCall call) { saves.wait(std::move(call)); }},
      disk_method(saves, kAbortSave, Repeats::kHarmless,
                  [](HostedSaves& all, ServerCall call) { all.abort(std::move(call)); }),
      disk_method(saves, kLoadVariables, Repeats::kAnsweredOnce,
                  [](HostedSaves& all, ServerCall call) {
                    serve_load(all.store(), *all.options().files, all.options().checkpoint_root,
                               std::move(call));
                  }),
  };
}

}  // namespace trireme::internal
