// No acknowledged push is lost, no push is applied twice, and one that was not acknowledged is
// applied at most once. TRIREME_UPDATES sets the number of updates.
//
// Eight worker processes push one-hot updates to four servers over calls that are lost, duplicated
// and reordered. Every third worker is killed at a random point, and in most cases another worker
// then repeats its whole batch with the same sequence numbers. The workers keep ledgers on disk of
// the updates that they sent and of those that were acknowledged. For each element, the sum on the
// servers must be at least the number of acknowledged updates and at most the number of sent ones.
#include <gtest/gtest.h>
#include <signal.h>

#include <deque>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/fault/push_ledger.h"
#include "tests/integration/commands.h"
#include "trireme/base/ids.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/variable_list.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr int kWorkers = 8;
constexpr int kServers = 4;
// Limit for the push records of all shards together. They hold one bit for each update above the
// watermark, and eight batches are in flight.
constexpr uint64_t kMostRecordBytes = 1 << 20;

// Updates that one worker pushes. Another worker repeats them if the first one is killed.
struct Batch {
  uint64_t first = 0, count = 0;
};

struct Running {
  Batch batch;
  std::string ledger;
  std::unique_ptr<Subprocess> process;
  std::optional<uint64_t> kill_at;  // killed after this many acknowledged updates
};

class PushTest : public testing::Test {
 protected:
  PushTest() : cluster_({{.workers = 0, .ps = kServers}}), random_(17) {
    client_ = value_or_throw(PsClient::connect({.spec = cluster_.spec()}, after(seconds(30))));
    counts_ = value_or_throw(client_->create({{.layout = counts_layout(kServers)}}));
    throw_if_error(client_->begin_writer(writer_));
    // Connects now, because later the servers are too busy for new connections.
    for (int i = 0; i < kServers; ++i) {
      channels_.push_back(
          std::make_unique<Channel>(ChannelOptions{.address = cluster_.spec().address({"ps", i})}));
      throw_if_error(connect_all({channels_.back().get()}, after(minutes(1))).status());
    }
  }

  Running start(const Batch& batch, uint64_t watermark, bool dies) {
    Running running{.batch = batch, .ledger = absl::StrCat(folder_.path(), "/", ledgers_.size())};
    ledgers_.push_back(running.ledger);
    std::vector<std::string> addresses;
    for (int i = 0; i < kServers; ++i) addresses.push_back(cluster_.spec().address({"ps", i}));
    running.process = value_or_throw(Subprocess::start(
        {.argv = {built_program("push_worker"), absl::StrJoin(addresses, ","),
                  absl::StrCat(writer_), absl::StrCat(batch.first), absl::StrCat(batch.count),
                  absl::StrCat(watermark), absl::StrCat(ledgers_.size()), running.ledger},
         .null_stdin = true}));
    if (dies) running.kill_at = random_() % batch.count;
    return running;
  }

  // Runs all batches, eight at a time, and kills every third worker. Returns the highest observed
  // size of the servers' push records, in bytes.
  uint64_t run(uint64_t total) {
    const uint64_t size = std::max<uint64_t>(1, total / 40);
    std::deque<Batch> queue;
    for (uint64_t first = 0; first < total; first += size) {
      queue.push_back({first, std::min(size, total - first)});
    }
    std::vector<Running> running;
    uint64_t most_records = 0;
    int started = 0;
    for (const Time limit = after(minutes(25)); !queue.empty() || !running.empty();) {
      if (Clock::real().now() > limit) {
        throw Error(ErrorCode::kDeadlineExceeded, "the updates took more than 25 minutes");
      }
      while (!queue.empty() && running.size() < kWorkers) {
        const Batch batch = queue.front();
        queue.pop_front();
        uint64_t watermark = batch.first;
        for (const Running& other : running) watermark = std::min(watermark, other.batch.first);
        for (const Batch& other : queue) watermark = std::min(watermark, other.first);
        running.push_back(start(batch, watermark, started++ % 3 == 1));
      }
      for (size_t i = 0; i < running.size();) {
        Running& one = running[i];
        if (one.kill_at && ledger_length(one.ledger + ".acknowledged") >= *one.kill_at) {
          one.process->send_signal(SIGKILL);
          one.process->wait(after(seconds(20)));
          ++killed_;
          // A fourth of these batches is not repeated: its updates may or may not have been
          // applied.
          if (killed_ % 4 != 0) queue.push_front(one.batch);
        } else if (const auto ended = one.process->wait(after(std::chrono::milliseconds(20)))) {
          EXPECT_TRUE(ended->ok()) << ended->to_string();
        } else {
          ++i;
          continue;
        }
        running.erase(running.begin() + i);
        most_records = std::max(most_records, record_bytes());
      }
    }
    return most_records;
  }

  uint64_t record_bytes() {
    uint64_t bytes = 0;
    for (const auto& channel : channels_) {
      bytes += value_or_throw(list_variables(*channel, after(minutes(1)))).record_bytes;
    }
    return bytes;
  }

  const TemporaryFolder folder_;
  ProcessCluster cluster_;
  const uint64_t writer_ = new_incarnation();
  std::mt19937_64 random_;
  std::unique_ptr<PsClient> client_;
  std::vector<PsVariable> counts_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<std::string> ledgers_;
  int killed_ = 0;
};

TEST_F(PushTest, EveryUpdateIsAppliedOnce) {
  const uint64_t total = setting("TRIREME_UPDATES", 16000);
  const uint64_t most_records = run(total);
  std::vector<bool> sent(total), acknowledged(total);
  for (const std::string& ledger : ledgers_) {
    for (uint64_t sequence : read_ledger(ledger + ".sent")) sent[sequence] = true;
    for (uint64_t sequence : read_ledger(ledger + ".acknowledged")) acknowledged[sequence] = true;
  }
  std::vector<int64_t> least(kElements), most(kElements);
  uint64_t done = 0;
  for (uint64_t sequence = 0; sequence < total; ++sequence) {
    least[element_of(sequence)] += acknowledged[sequence];
    most[element_of(sequence)] += sent[sequence];
    done += acknowledged[sequence];
  }
  const at::Tensor counts = value_or_throw(client_->pull({{counts_[0]}}))[0];
  for (int64_t element = 0; element < kElements; ++element) {
    const int64_t applied = counts[element].item<int64_t>();
    EXPECT_GE(applied, least[element]) << "an acknowledged update of " << element << " is lost";
    EXPECT_LE(applied, most[element]) << "an update of " << element << " was applied twice";
  }
  EXPECT_GT(killed_, 5);
  EXPECT_GT(done, total * 9 / 10);
  EXPECT_LE(most_records, kMostRecordBytes);
  std::printf("%lu updates, %lu acknowledged, %d workers killed, at most %lu bytes of records\n",
              total, done, killed_, most_records);

  throw_if_error(client_->end_writer(writer_));
  EXPECT_EQ(record_bytes(), 0u);
  EXPECT_EQ(error_code(client_->push({{.variable = counts_[0], .values = counts}},
                                     {.id = {writer_, total, 0}})),
            ErrorCode::kAborted)
      << "a worker that was frozen pushed after its writer had ended";
}

}  // namespace
}  // namespace trireme
