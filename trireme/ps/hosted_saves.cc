#include "trireme/ps/hosted_saves.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/call_slices.h"
#include "trireme/ps/checkpoint_folder.h"
#include "trireme/ps/saves.pb.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

constexpr auto kSaveTick = std::chrono::milliseconds(250);
constexpr uint32_t kMostServers = 1'000'000;
constexpr size_t kMostSaveId = 100;

}  // namespace

HostedSaves::HostedSaves(VariableStore& store, HostedSavesOptions options)
    : store_(store), options_(std::move(options)) {}

void HostedSaves::submit(Work work) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>("trireme-saves", 2);
  pool_->submit(std::move(work));
}

void HostedSaves::stop() {
  std::map<std::string, Save> saves;
  std::vector<Save> earlier;
  std::unique_ptr<ThreadPool> pool;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    saves.swap(saves_);
    earlier.swap(earlier_);
    pool.swap(pool_);
  }
  { const MutexLock no_tick(tick_mutex_); }
  pool.reset();  // waits for loads
  saves.clear();
  earlier.clear();
}

absl::StatusOr<HostedSaves::Save> HostedSaves::make(const BeginSaveRequest& request) {
  const VariableScope scope = to_scope(request.scope());
  if (request.id().empty() || request.id().size() > kMostSaveId ||
      request.index() >= request.servers() || request.servers() > kMostServers ||
      request.mode() < SAVE_COPY || request.mode() > SAVE_STREAM) {
    return malformed_request(absl::StrCat("save '", request.id(), "' of server ", request.index(),
                                          " of ", request.servers(), " in mode ", request.mode()));
  }
  const std::vector<uint64_t> handles(request.handles().begin(), request.handles().end());
  if (std::set<uint64_t>(handles.begin(), handles.end()).size() != handles.size()) {
    return malformed_request("a save that names a variable twice");
  }
  TRIREME_ASSIGN_OR_RETURN(auto variables, store_.lookup(scope, handles));
  TRIREME_ASSIGN_OR_RETURN(const std::string folder,
                           resolve_folder(options_.checkpoint_root, request.directory()));
  TRIREME_RETURN_IF_ERROR(check_probe(*options_.files, folder, request.probe()));
  TRIREME_ASSIGN_OR_RETURN(auto image, SavedImage::make(std::move(variables)));
  return std::make_shared<ServerSave>(
      ServerSaveOptions{.id = request.id(),
                        .scope = scope,
                        .folder = folder,
                        .file = server_file_name(request.index(), request.servers()),
                        .stream = request.mode() == SAVE_STREAM,
                        .stuck_after = options_.stuck_after,
                        .unasked_after = options_.unasked_after},
      std::move(image), store_, *options_.files);
}

absl::StatusOr<HostedSaves::Save> HostedSaves::add(const Save& save) {
  const VariableScope& scope = save->options().scope;
  Save before;
  {
    MutexLock lock(mutex_);
    if (stopped_) return make_status(ErrorCode::kAborted, "the server ends");
    Save& current = saves_[scope.job];
    const bool same_program =
        current != nullptr && current->options().scope.generation == scope.generation;
    if (same_program && current->running()) {
      return make_status(ErrorCode::kFailedPrecondition,
                         absl::StrCat("save '", current->options().id, "' of job '", scope.job,
                                      "' is still under way; wait for it, or abort it"));
    }
    before = std::exchange(current, save);
    if (before != nullptr && !before->over()) earlier_.push_back(before);
    if (!std::exchange(ticking_, true)) tick_later();
  }
  if (before != nullptr && before->running()) {
    before->abort(make_status(ErrorCode::kAborted, "a newer program of the job saves"));
  }
  if (before != nullptr) before->leave_file();
  return before;
}

void HostedSaves::begin(ServerCall call) {
  const auto request = parse_body<BeginSaveRequest>(call.request());
  if (!request.ok()) return call.respond(request.status());
  const auto save = make(*request);
  if (!save.ok()) return call.respond(disk_error(save.status()));
  auto before = add(*save);
  if (!before.ok()) return call.respond(before.status());
  (*save)->start(std::move(call), *std::move(before));
}

HostedSaves::Save HostedSaves::find(const std::string& job, const std::string& id) {
  MutexLock lock(mutex_);
  const auto found = saves_.find(job);
  return found == saves_.end() || found->second->options().id != id ? nullptr : found->second;
}

void HostedSaves::wait(ServerCall call) {
  const auto request = parse_body<WaitSaveRequest>(call.request());
  if (!request.ok()) return call.respond(request.status());
  const Save save = find(request->scope().job(), request->id());
  if (save != nullptr) return save->wait(std::move(call));
  call.respond(make_status(
      ErrorCode::kNotFound,
      absl::StrCat("the server knows no save '", request->id(), "' of job '",
                   request->scope().job(), "': it was given up, or another one has begun")));
}

void HostedSaves::abort(ServerCall call) {
  const auto request = parse_body<AbortSaveRequest>(call.request());
  if (!request.ok()) return call.respond(request.status());
  if (const Save save = find(request->scope().job(), request->id())) {
    save->abort(make_status(ErrorCode::kAborted, "the program has aborted the save"));
  }
  call.respond(make_message(AbortSaveResponse()));
}

void HostedSaves::tick_later() {
  run_at(after(kSaveTick), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->tick();
  });
}

void HostedSaves::tick() {
  const MutexLock one_tick(tick_mutex_);  // stop() waits for it
  std::vector<Save> saves, forgotten;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    for (const auto& [job, save] : saves_) saves.push_back(save);
    const auto over =
        std::ranges::stable_partition(earlier_, [](const Save& save) { return !save->over(); });
    std::ranges::move(over, std::back_inserter(forgotten));
    earlier_.erase(over.begin(), over.end());
    saves.insert(saves.end(), earlier_.begin(), earlier_.end());
  }
  for (const Save& save : saves) {
    ServerSave::Next next = save->tick();
    const absl::Status current = store_.check(save->options().scope);
    if (next == ServerSave::Next::kAbort || (!current.ok() && save->running())) {
      const absl::Status why =
          current.ok() ? make_status(ErrorCode::kAborted, "the program has not asked for the save")
                       : current;
      submit([save, why] { save->abort(why); });
    } else if (next == ServerSave::Next::kForget) {
      MutexLock lock(mutex_);
      const auto found = saves_.find(save->options().scope.job);
      if (found == saves_.end() || found->second != save) continue;
      forgotten.push_back(std::move(found->second));
      saves_.erase(found);
    }
  }
  MutexLock lock(mutex_);
  ticking_ = !stopped_ && (!saves_.empty() || !earlier_.empty());
  if (ticking_) tick_later();
}

}  // namespace trireme::internal
