#include "trireme/ps/parallel.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

namespace trireme::internal {
namespace {

// Threads claim ranges from a common counter, so that a thread that starts late takes fewer of
// them, or none. The one that finishes the last range calls done(). The job is shared by all
// threads: a helper may be scheduled only after everything is done, and then finds no range.
struct Job {
  std::vector<size_t> ends;  // end of each range; a range begins where the one before it ends
  std::function<void(size_t)> body;
  std::function<void()> done;
  std::atomic<size_t> next = 0;      // next range to be claimed
  std::atomic<size_t> finished = 0;  // number of finished ranges

  void work() {
    for (size_t range = next.fetch_add(1); range < ends.size(); range = next.fetch_add(1)) {
      for (size_t i = range == 0 ? 0 : ends[range - 1]; i < ends[range]; ++i) body(i);
      if (finished.fetch_add(1) + 1 == ends.size()) done();
    }
  }
};

}  // namespace

void for_each_parallel(ThreadPool& pool, const std::vector<size_t>& bytes,
                       std::function<void(size_t)> body, std::function<void()> done) {
  if (bytes.empty()) return done();
  auto job = std::make_shared<Job>();
  job->body = std::move(body);
  job->done = std::move(done);
  size_t in_range = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    in_range += bytes[i];
    if (in_range < kRangeBytes && i + 1 < bytes.size()) continue;
    job->ends.push_back(i + 1);
    in_range = 0;
  }
  const size_t helpers = std::min<size_t>(job->ends.size(), pool.threads()) - 1;
  for (size_t i = 0; i < helpers; ++i) pool.submit([job] { job->work(); });
  job->work();
}

}  // namespace trireme::internal
