#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/job_key.h"
#include "trireme/ps/lease_clock.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// How a program takes part in a job.
struct JobOptions {
  std::string id;       // empty for a new job with a random id
  bool resume = false;  // true if a new generation continues with the variables of the last one
  bool keep = false;    // true if the servers keep the variables when the job ends in order
  Duration lease = std::chrono::seconds(3);
  bool timer = true;      // true to renew the leases by a timer, false if the owner calls renew()
  uint64_t member = 0;    // number of the member; 0 to draw one
  uint64_t at_least = 0;  // a generation that is known to exist, possibly at other servers
  // Time at which the program was certainly alive; nullopt if join() runs in the program itself.
  std::optional<Time> alive_at = std::nullopt;
};

// A client program's part in a job. From join() on it holds a lease at every server, which it
// renews every third of the lease, until leave() or its destruction. Thread-safe. May be destroyed
// while calls are in flight.
class JobMembership : public std::enable_shared_from_this<JobMembership> {
 public:
  using Channels = std::vector<std::shared_ptr<Channel>>;

  // Joins the job, or begins a new generation of it, at all servers. The first one holds the
  // counter of generations. The channels must know the incarnations of their servers
  // (Channel::hello). Blocks until it is decided whether earlier programs of the job are alive,
  // which takes as long as their lease at most, but not beyond `deadline`.
  static absl::StatusOr<std::shared_ptr<JobMembership>> join(JobOptions options, Channels servers,
                                                             Time deadline);

  const JobKey& job() const { return job_; }
  uint64_t member() const { return member_; }
  // Returns true if the generation had begun before this program joined it.
  bool joined() const { return joined_; }
  // Returns true if this member itself began the generation, by an earlier join().
  bool began() const { return began_; }
  // Returns true if the program continues with the variables of an earlier generation, or may do
  // so: its generation was begun with `resume`.
  bool resumed() const { return resumed_; }
  int servers() const;
  // Returns the task of a server: "/job:ps/task:0".
  std::string task(int server) const;
  // Returns the generation in which the variables at each server began. If the generations differ,
  // some servers have lost variables of the job that others still hold.
  std::vector<uint64_t> since() const;

  // Begins the generation at one more server, whether other members have begun it there or not. A
  // server of the same task, which was restarted, is replaced. Fails with ABORTED if the program
  // leaves the job meanwhile, and with FAILED_PRECONDITION if the server knows a higher generation
  // that has no members any more, since it did not answer when this one began. Blocks.
  absl::Status add_server(std::shared_ptr<Channel> server, Time deadline);

  // Registers a writer of this program with all servers, and removes it. Its lease is renewed with
  // that of the program. end_writer() does not retry, so that a lost server does not delay it.
  absl::Status begin_writer(uint64_t writer);
  absl::Status end_writer(uint64_t writer, Duration timeout = std::chrono::seconds(10));

  // Sets the sequence below which the writer's pushes are fenced; it never falls. Every renewal
  // that is sent from now on raises the writer's watermark to it before it renews the lease.
  // Returns, for each server, the time at which all leases that were requested before have run out
  // there (LeaseClock::run_out). Add a margin for the drift of clocks.
  std::vector<Time> raise_fence(uint64_t writer, uint64_t below);
  // Sends the fence to one server. Calls back once: with OK as soon as no push of the writer below
  // it is being applied there or will be, otherwise with the error, at `deadline` at the latest. A
  // server that cannot be reached for half a second is not waited for.
  void fence(int server, uint64_t writer, uint64_t below, Time deadline,
             absl::AnyInvocable<void(absl::Status)> done);

  // Sends a renewal to every server, on behalf of a program that was alive at `sent`. The leases
  // last from then on.
  void renew(Time sent = Clock::real().now());

  // Returns OK while the program takes part in the job. Returns ABORTED with the reason once a
  // server said that a newer program has taken over, or that the job was dropped.
  absl::Status status() const;
  // Replaces the error of a call to a server by status() if the program no longer takes part in the
  // job, since that is the cause. Returns other errors, and OK, unchanged.
  absl::Status explain(absl::Status error) const;
  // Calls `callback` once, as soon as status() is not OK any more; at once if that is so already.
  // It runs on a thread that serves many calls and must not block. Returns a token, by which
  // remove_on_end() removes the callback; it may be running then.
  uint64_t on_end(absl::AnyInvocable<void(const absl::Status&)> callback);
  void remove_on_end(uint64_t token);

  // Makes the servers keep the variables when this program leaves, as JobOptions::keep does.
  void keep_variables();
  // Leaves the job, and ends the writers of this program. If it is the last member, the job ends,
  // and the servers free its variables unless they are to be kept. Best effort: waits for
  // servers that do not answer until `timeout` at most. Later calls have no effect.
  void leave(Duration timeout = std::chrono::seconds(2));

 private:
  struct Server {
    std::shared_ptr<Channel> channel;
    LeaseClock clock = {};
    uint64_t since = 0;  // see since()
  };
  using Callback = absl::AnyInvocable<void(const absl::Status&)>;

  JobMembership(JobOptions options, const Channels& servers);

  // Asks all servers for the highest generation that they know.
  absl::StatusOr<uint64_t> find_generation(Time deadline);
  // Decides, at the first server, which generation this program takes part in.
  absl::Status choose_generation(uint64_t at_least, Time deadline);
  // Begins the generation at the servers from `first` to before `last`.
  absl::Status begin(size_t first, size_t last, Time deadline);

  // Adds a server at which the generation has begun, or replaces that of the same task. If the
  // program has left the job meanwhile, ends it there and returns ABORTED.
  absl::Status insert_server(Server server);

  // Calls a method of the servers from `first` to before `last` and blocks until all have answered.
  // `make` makes the request for a server; it runs under the lock. `read` gets each answer, also
  // under the lock. Returns the first error.
  template <typename Make, typename Read>
  absl::Status call_servers(const char* method, size_t first, size_t last,
                            const CallOptions& options, Make make, Read read);

  // Renews the leases every third of a lease, as long as the object lives.
  void start_timer();
  void on_renewed(const std::shared_ptr<Channel>& channel, const Response& response);
  void end(const absl::Status& why);

  const JobOptions options_;
  const uint64_t member_;
  // Set by join() and constant after it.
  JobKey job_;
  bool joined_ = false;   // see joined()
  bool resumed_ = false;  // see resumed()
  bool began_ = false;    // see began()

  mutable Mutex mutex_;
  std::vector<Server> servers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> fences_ ABSL_GUARDED_BY(mutex_);  // fence by writer
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);                   // see status()
  bool keep_ ABSL_GUARDED_BY(mutex_);          // true if the variables are to be kept
  bool left_ ABSL_GUARDED_BY(mutex_) = false;  // true once leave() was called
  // True if the job ends with this member, as the first server said to leave(). Set from then on;
  // leave() does not see servers that are added later.
  std::optional<bool> last_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Callback> callbacks_ ABSL_GUARDED_BY(mutex_);  // by token
};

}  // namespace trireme
