#include "trireme/ps/ps_saver.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/ps/save_service.h"
#include "trireme/ps/saves.pb.h"
#include "trireme/rpc/call_all.h"

namespace trireme::internal {
namespace {

// A server that cannot be reached for this long has lost the save.
constexpr auto kUnreachableTime = std::chrono::seconds(10);

template <typename Request>
void set_save(const PsClient& client, const std::string& id, Request& request) {
  const VariableScope scope = client.scope();
  request.mutable_scope()->set_job(scope.job);
  request.mutable_scope()->set_generation(scope.generation);
  request.mutable_scope()->set_container(scope.container);
  request.set_id(id);
}

SavedTensor to_saved_tensor(const SavedTensorDef& tensor, int file) {
  return {tensor.name(), file, tensor.offset(), tensor.bytes(), tensor.crc()};
}

// Adds a shard to its variable. The optimizer of a variable is the same for all shards.
void add_shard(const VariableLayout::Shard& shard, const SavedShardDef& saved,
               SavedVariable& variable) {
  variable.rule = saved.rule();
  variable.options = {saved.options().begin(), saved.options().end()};
  variable.slots = {saved.slot_names().begin(), saved.slot_names().end()};
  SavedShard& added = variable.shards.emplace_back();
  added.first = shard.rows.first;
  added.count = shard.rows.count;
  added.contents = to_saved_tensor(saved.contents(), shard.server);
  for (const auto& slot : saved.slots()) added.slots.push_back(to_saved_tensor(slot, shard.server));
  added.step = saved.step();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsSave>> PsSave::begin(PsClient& client,
                                                      std::vector<PsVariable> variables,
                                                      const PsSaveOptions& options, Time limit) {
  TRIREME_ASSIGN_OR_RETURN(const std::string directory, try_call([&] {
                             return std::filesystem::absolute(options.directory).string();
                           }));
  std::unique_ptr<PsSave> save(new PsSave(client, std::move(variables), options.id));
  TRIREME_RETURN_IF_ERROR(save->begin_all(options, directory, limit));
  return save;
}

absl::Status PsSave::begin_all(const PsSaveOptions& options, const std::string& directory,
                               Time limit) {
  std::vector<BeginSaveRequest> requests(client_.servers());
  for (int i = 0; i < client_.servers(); ++i) {
    set_save(client_, id_, requests[i]);
    requests[i].set_directory(directory);
    requests[i].set_probe(options.probe);
    requests[i].set_index(i);
    requests[i].set_servers(client_.servers());
    requests[i].set_mode(options.stream ? SAVE_STREAM : SAVE_COPY);
  }
  for (const PsVariable& variable : variables_) {
    const auto& shards = variable.layout().shards;
    for (size_t i = 0; i < shards.size(); ++i) {
      requests[shards[i].server].add_handles(variable.handle(i));
    }
  }
  std::vector<TargetedCall> calls;
  for (int i = 0; i < client_.servers(); ++i) {
    CallOptions call = client_.call_options(0, false);
    call.deadline = limit;
    call.retry->unreachable_time = kUnreachableTime;
    calls.push_back({&client_.channel(i), make_message(requests[i]), call});
  }
  TRIREME_ASSIGN_OR_RETURN(const Responses responses, call_all(kBeginSave, std::move(calls)));
  for (const Message& message : responses) {
    TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<BeginSaveResponse>(message));
    stats_.bytes += response.bytes();
    stats_.copy = std::max<Duration>(stats_.copy, std::chrono::microseconds(response.copy_us()));
  }
  return absl::OkStatus();
}

PsSave::~PsSave() {
  if (!done_) abort();
}

void PsSave::abort() {
  AbortSaveRequest request;
  set_save(client_, id_, request);
  std::vector<TargetedCall> calls;
  for (int i = 0; i < client_.servers(); ++i) {
    // Without retries: a server that is lost has no save any more, or gives it up itself.
    const CallOptions options{.deadline = after(std::chrono::seconds(5))};
    calls.push_back({&client_.channel(i), make_message(request), options});
  }
  call_all(kAbortSave, std::move(calls)).status().IgnoreError();
}

absl::StatusOr<PsSaved> PsSave::wait(const Progress& progress, std::stop_token stop) {
  absl::StatusOr<PsSaved> saved = wait_for_all(progress, stop);
  done_ = true;
  if (!saved.ok()) abort();
  return saved;
}

absl::StatusOr<PsSaved> PsSave::wait_for_all(const Progress& progress,
                                             const std::stop_token& stop) {
  WaitSaveRequest request;
  set_save(client_, id_, request);
  std::vector<WaitSaveResponse> answers(client_.servers());
  while (true) {
    std::vector<int> asked;
    std::vector<TargetedCall> calls;
    for (int i = 0; i < client_.servers(); ++i) {
      if (answers[i].done()) continue;
      asked.push_back(i);
      CallOptions options = client_.call_options(0, true);
      options.stop = stop;
      options.retry->unreachable_time = kUnreachableTime;
      calls.push_back({&client_.channel(i), make_message(request), options});
    }
    if (asked.empty()) break;
    TRIREME_ASSIGN_OR_RETURN(const Responses responses, call_all(kWaitSave, std::move(calls)));
    for (size_t i = 0; i < asked.size(); ++i) {
      TRIREME_ASSIGN_OR_RETURN(answers[asked[i]], parse_body<WaitSaveResponse>(responses[i]));
    }
    uint64_t written = 0;
    stats_.pool_wait_total = stats_.pool_wait_longest = {};
    for (const WaitSaveResponse& answer : answers) {
      written += answer.written();
      stats_.pool_wait_total += std::chrono::microseconds(answer.pool_wait_us());
      stats_.pool_wait_longest = std::max<Duration>(
          stats_.pool_wait_longest, std::chrono::microseconds(answer.longest_wait_us()));
      stats_.extra_bytes = std::max(stats_.extra_bytes, answer.extra_bytes());
    }
    if (progress) progress(written, stats_.bytes);
    if (stop.stop_requested()) {
      return make_status(ErrorCode::kCancelled, "the save was cancelled");
    }
  }
  PsSaved saved;
  for (const WaitSaveResponse& answer : answers) {
    saved.files.push_back(
        {answer.file(), answer.bytes(), answer.header_bytes(), answer.header_crc()});
  }
  std::map<int, int> next;  // number of shards consumed, by server
  for (const PsVariable& variable : variables_) {
    const VariableLayout& layout = variable.layout();
    SavedVariable& added = saved.variables.emplace_back();
    added.name = layout.name;
    added.dtype = layout.dtype;
    added.sizes = layout.sizes;
    for (const VariableLayout::Shard& shard : layout.shards) {
      const int i = next[shard.server]++;
      const WaitSaveResponse& answer = answers[shard.server];
      if (i >= answer.shards_size()) {
        return make_status(ErrorCode::kInternal, "its server has not answered for all variables",
                           layout.object());
      }
      add_shard(shard, answer.shards(i), added);
    }
  }
  return saved;
}

}  // namespace trireme::internal
