#include "trireme/rpc/connect.h"

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/rpc/async_hello.h"
#include "trireme/rpc/connection_probe.h"
#include "trireme/rpc/retrying_call.h"

// Waiting for servers that may not be up yet. gRPC reports only that it could not connect, and with
// wait_for_ready nothing at all. So two things go on side by side: hellos, which retry until the
// deadline, and examinations of the servers that have not answered, with connections of our own
// (connection_probe.h).
//
// The first examination comes after 300 ms, later ones with each report. If a diagnosis is final,
// the next examination follows after another 300 ms, and a second final diagnosis of the same
// server ends the wait with an error. One is not enough: a server that is being restarted may
// briefly look like anything.
namespace trireme {
namespace {

using internal::Found;
using internal::Probe;
using std::chrono::milliseconds;

// Time of the first examination, and between two of a server that is suspected to be unusable.
constexpr auto kFirstLook = milliseconds(300);
// Time limit of one examination.
constexpr auto kProbeTime = milliseconds(1000);
// Number of tasks that a log line or an error names, and that are probed.
constexpr size_t kMostTasks = 5;

std::string name_of(const Channel& channel) {
  return channel.task().empty() ? channel.address()
                                : absl::StrCat(channel.task(), " (", channel.address(), ")");
}

// Finds out why two sides that both use TLS cannot connect. Only the text of gRPC's error has the
// reason, so this searches it.
Diagnosis diagnose_tls(const Channel& channel, Time limit) {
  Channel fresh(channel.options());
  const auto hello = fresh.hello(limit);
  if (hello.ok()) return {"it is up now", false};
  const std::string text(hello.status().message());
  if (error_code(hello.status()) != ErrorCode::kTaskUnreachable ||
      absl::StrContains(text, "Connection refused")) {
    return {text, false};
  }
  const auto names_other = text.find("the server's certificate is that of");
  if (names_other != std::string::npos) {
    const std::string cause = text.substr(names_other, text.find(')', names_other) - names_other);
    return {absl::StrCat(cause, "; do both sides use the same cluster spec?"), true};
  }
  if (absl::StrContains(text, "CERTIFICATE_VERIFY_FAILED") ||
      absl::StrContains(text, "certificate verify failed")) {
    return {
        "its certificate is not signed by the authority (ca.pem) that this side trusts, or has "
        "expired; give both sides certificates of one authority",
        true};
  }
  return {
      "it ends the TLS handshake: it rejects this side's certificate, which has expired or is "
      "not signed by the authority (ca.pem) that it trusts; see its log",
      true};
}

}  // namespace

bool ReportTimes::due(Time now) {
  if (now < next_) return false;
  pause_ = std::min<Duration>(pause_ * 2, kLongest);
  next_ = now + pause_;
  return true;
}

Diagnosis diagnose(const Channel& channel, Time limit) {
  const Probe probe = internal::probe_connection(channel.address(), limit);
  const std::string system = probe.system.empty() ? "" : absl::StrCat(" (", probe.system, ")");
  const bool secure = channel.options().credentials.is_secure();
  switch (probe.found) {
    case Found::kNoSuchHost:
      return {absl::StrCat("its host name cannot be resolved", system)};
    case Found::kRefused:
      return {absl::StrCat("no process listens there", system, "; is the task running?")};
    case Found::kUnreachable:
      return {absl::StrCat("there is no route to its machine", system)};
    case Found::kSilent:
      return {
          "no answer; its machine is down, a firewall drops the connection, or the process there "
          "is stopped"};
    case Found::kPlain:
      if (!secure) return {"it accepts connections, but does not answer yet"};
      return {
          "the server has no certificates, and this client has; start the server with --certs, or "
          "use none here",
          true};
    case Found::kTls:
      if (secure) return diagnose_tls(channel, limit);
      return {
          "the server requires certificates, and this client has none; name the folder of the "
          "client's certificates (`certs` in its options, --certs)",
          true};
    case Found::kOther:
      break;
  }
  return {"another program listens there, not a Trireme server; is the address right?", true};
}

std::vector<Diagnosis> diagnose_all(const std::vector<const Channel*>& channels, Time limit) {
  std::vector<std::future<Diagnosis>> asked;
  for (const Channel* channel : channels) {
    if (asked.size() == kMostTasks) break;
    asked.push_back(
        std::async(std::launch::async, [channel, limit] { return diagnose(*channel, limit); }));
  }
  std::vector<Diagnosis> diagnoses;
  for (auto& diagnosis : asked) diagnoses.push_back(diagnosis.get());
  return diagnoses;
}

std::string list_causes(const std::vector<const Channel*>& channels,
                        const std::vector<Diagnosis>& diagnoses) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(channels.size(), kMostTasks); ++i) {
    parts.push_back(absl::StrCat(name_of(*channels[i]), ": ",
                                 i < diagnoses.size() ? diagnoses[i].cause : "no answer"));
  }
  if (channels.size() > parts.size()) {
    parts.push_back(absl::StrCat("and ", channels.size() - parts.size(), " more tasks"));
  }
  return absl::StrJoin(parts, "; ");
}

absl::Status cannot_connect(const Channel& channel, const Diagnosis& diagnosis) {
  return make_status(ErrorCode::kFailedPrecondition,
                     absl::StrCat("cannot connect to ", name_of(channel), ": ", diagnosis.cause),
                     {channel.task(), ""});
}

namespace {

// One wait for a set of servers. The hellos share ownership, so that an answer which comes after
// the end of the wait still finds it. The channels must outlive the wait. One thread runs it;
// answers arrive on others.
class Connecting : public std::enable_shared_from_this<Connecting> {
 public:
  Connecting(std::vector<Channel*> channels, Time deadline, bool logs)
      : channels_(std::move(channels)),
        deadline_(deadline),
        logs_(logs),
        answers_(channels_.size()) {}

  // Returns nullopt if the deadline has passed.
  absl::StatusOr<std::optional<std::vector<Hello>>> run() {
    for (size_t i = 0; i < channels_.size(); ++i) ask(i);
    auto result = wait();
    stop_.request_stop();
    return result;
  }

  std::string first_missing() {
    const auto all = missing();
    return all.empty() ? "" : all.front()->task();
  }

  // Lists the missing servers, with the causes that the last examination found.
  std::string missing_and_causes() {
    std::vector<const Channel*> still;
    std::vector<Diagnosis> causes;
    for (const Channel* channel : missing()) {
      const auto examined = std::find(examined_.begin(), examined_.end(), channel);
      const size_t i = examined - examined_.begin();
      if (i < diagnoses_.size() && causes.size() == still.size()) causes.push_back(diagnoses_[i]);
      still.push_back(channel);
    }
    return list_causes(still, causes);
  }

 private:
  void ask(size_t i) {
    say_hello(*channels_[i],
              {.deadline = deadline_,
               .wait_for_ready = true,
               .stop = stop_.get_token(),
               .retry = RetryPolicy{.longest_delay = std::chrono::milliseconds(500)}},
              [self = shared_from_this(), i](const absl::StatusOr<Hello>& hello) {
                self->answered(i, hello);
              });
  }

  void answered(size_t i, const absl::StatusOr<Hello>& hello) {
    MutexLock lock(mutex_);
    answers_[i] = hello;
    changed_.notify_all();
  }

  absl::StatusOr<std::optional<std::vector<Hello>>> wait() {
    const Time start = Clock::real().now();
    // The first examination comes before even a near deadline, so that the error has a cause.
    Time look = start + std::min<Duration>(kFirstLook, (deadline_ - start) / 2);
    ReportTimes reports(start);
    for (;;) {
      if (auto result = result_by(std::min(look, deadline_))) {
        if (!result->ok()) return result->status();
        return **std::move(result);
      }
      const Time now = Clock::real().now();
      if (now >= deadline_) return std::nullopt;
      if (const absl::Status status = examine(); !status.ok()) return status;
      if (reports.due(now) && logs_) log_warning("waiting for ", missing_and_causes());
      look = suspected_.empty() ? reports.next() : after(kFirstLook);
    }
  }

  // Blocks until all have answered or one has failed for good. Returns nullopt if neither happens
  // by `time`.
  std::optional<absl::StatusOr<std::vector<Hello>>> result_by(Time time) {
    MutexLock lock(mutex_);
    for (;;) {
      std::vector<Hello> all;
      for (size_t i = 0; i < answers_.size(); ++i) {
        if (!answers_[i]) continue;
        if (answers_[i]->ok()) {
          all.push_back(**answers_[i]);
        } else if (!internal::is_retryable(answers_[i]->status())) {
          return with_origin(answers_[i]->status(), {channels_[i]->task(), ""});
        }
      }
      if (all.size() == answers_.size()) return all;
      if (!changed_.wait_until(mutex_, time)) return std::nullopt;
    }
  }

  std::vector<const Channel*> missing() {
    MutexLock lock(mutex_);
    std::vector<const Channel*> missing;
    for (size_t i = 0; i < answers_.size(); ++i) {
      if (!answers_[i] || !answers_[i]->ok()) missing.push_back(channels_[i]);
    }
    return missing;
  }

  // Diagnoses the missing servers. Returns an error if the diagnosis of one is final for the second
  // time in a row.
  absl::Status examine() {
    examined_ = missing();
    diagnoses_ = diagnose_all(examined_, std::min(after(kProbeTime), deadline_));
    std::set<const Channel*> suspected;
    for (size_t i = 0; i < diagnoses_.size(); ++i) {
      if (!diagnoses_[i].is_final) continue;
      if (suspected_.contains(examined_[i])) return cannot_connect(*examined_[i], diagnoses_[i]);
      suspected.insert(examined_[i]);
    }
    suspected_ = std::move(suspected);
    return absl::OkStatus();
  }

  const std::vector<Channel*> channels_;
  const Time deadline_;
  const bool logs_;
  std::stop_source stop_;
  // The last examination. Used by the waiting thread only.
  std::vector<const Channel*> examined_;
  std::vector<Diagnosis> diagnoses_;    // diagnoses of the first few in examined_
  std::set<const Channel*> suspected_;  // servers whose diagnosis was final
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::optional<absl::StatusOr<Hello>>> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::vector<Hello>> connect_all(const std::vector<Channel*>& channels,
                                               Time deadline) {
  const Time start = Clock::real().now();
  const auto connecting = std::make_shared<Connecting>(channels, deadline, /*logs=*/true);
  TRIREME_ASSIGN_OR_RETURN(const auto hellos, connecting->run());
  if (!hellos) {
    return make_status(ErrorCode::kDeadlineExceeded,
                       absl::StrCat("waited ", format_duration(Clock::real().now() - start),
                                    " for ", connecting->missing_and_causes()),
                       {connecting->first_missing(), ""});
  }
  for (size_t i = 0; i < channels.size(); ++i) channels[i]->remember((*hellos)[i]);
  return *hellos;
}

absl::StatusOr<std::string> find_missing(const std::vector<Channel*>& channels, Time deadline) {
  const auto connecting = std::make_shared<Connecting>(channels, deadline, /*logs=*/false);
  TRIREME_ASSIGN_OR_RETURN(const auto hellos, connecting->run());
  return hellos ? "" : connecting->missing_and_causes();
}

}  // namespace trireme
