// Calls every operator that a graph may name with malicious arguments, as a server would, and
// reports everything but an error or a proper result: a crash, a run that does not end, a result
// that depends on uninitialized memory, a result that shares memory without the plan saying so.
//
// Variant n is a mutation of call n mod (number of calls). The first round runs the calls as they
// are. The following rounds mutate one argument each, in an order that differs from call to call.
// When a call has no further mutation of one argument, two or three are mutated at once. Thus any
// running time is spread evenly over the operators, and a number is enough to repeat a variant.
//
// Variants run in child processes, since they may crash: child j of `jobs` runs the variants n with
// n mod jobs = j. Each child writes its position to shared memory and its findings to a pipe. When
// a child crashes or exceeds the time limit, the parent reports the variant at that position and
// starts a new child at the next one.
#include <ATen/Parallel.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "tests/fuzz/operators/check_call.h"
#include "tests/fuzz/operators/guarded_memory.h"
#include "trireme/graph/operators.h"
#include "trireme/optim/row_updates.h"

// A crash ends the child at once, because a report of all frames of LibTorch takes seconds.
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:"
         "detect_leaks=0:allocator_may_return_null=1";
}

namespace trireme::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSecondsPerVariant = 10;
// After this many variants a new child takes over, because memory that LibTorch keeps slows the old
// one down.
constexpr uint64_t kVariantsPerChild = 4000;
constexpr char kUsage[] = R"(usage: fuzz_operators CALLS [OPTION...]

CALLS is a file of calls (tests/fuzz/operators/calls.txt).
  --seconds N        running time (default 60)
  --jobs N           number of processes (default 2)
  --seed N           seed of the order of mutations and of the contents of tensors (default 1)
  --only TEXT        runs only operators with TEXT in their names; "=NAME" selects one operator
  --without-guards   runs operators without guards, so that the fuzzer must find something
  --variant N        runs one variant in this process and prints its outcome
  --good             runs only the calls as they are, without mutations
  --stop-at-first    ends at the first finding
)";

struct Options {
  std::string calls, only;
  int seconds = 60, jobs = 2;
  uint64_t seed = 1;
  bool without_guards = false, only_good = false, stop_at_first = false;
  int64_t variant = -1;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 < argc) return argv[++i];
      std::cerr << flag << " needs a value\n" << kUsage;
      std::exit(2);
    };
    if (flag == "--seconds")
      options.seconds = std::stoi(value());
    else if (flag == "--jobs")
      options.jobs = std::stoi(value());
    else if (flag == "--seed")
      options.seed = std::stoull(value());
    else if (flag == "--only")
      options.only = value();
    else if (flag == "--without-guards")
      options.without_guards = true;
    else if (flag == "--good")
      options.only_good = true;
    else if (flag == "--stop-at-first")
      options.stop_at_first = true;
    else if (flag == "--variant")
      options.variant = std::stoll(value());
    else if (flag[0] != '-' && options.calls.empty())
      options.calls = flag;
    else {
      std::cerr << (flag == "--help" ? "" : "unknown option " + flag + "\n") << kUsage;
      std::exit(flag == "--help" ? 0 : 2);
    }
  }
  if (options.calls.empty()) {
    std::cerr << kUsage;
    std::exit(2);
  }
  return options;
}

bool is_wanted(const Call& call, const std::string& only) {
  const std::string name = full_name(call.op);
  return only[0] == '=' ? name == only.substr(1) : name.find(only) != std::string::npos;
}

// Derives the mutations of each variant from its number and the seed.
class Variants {
 public:
  Variants(const std::vector<Call>& calls, uint64_t seed)
      : calls_(calls), seed_(seed), mutations_(calls.size()) {}

  const Call& call(uint64_t variant) const { return calls_[variant % calls_.size()]; }

  uint64_t round(uint64_t variant) const { return variant / calls_.size(); }

  std::vector<Mutation> mutations(uint64_t variant) {
    const size_t index = variant % calls_.size();
    const uint64_t round = this->round(variant);
    if (round == 0) return {};
    auto& all = mutations_[index];
    if (all.empty()) {
      all = mutations_of(calls_[index].op, calls_[index].make(0));
      std::shuffle(all.begin(), all.end(), std::mt19937_64(seed_ + index));
    }
    if (all.empty()) return {};
    if (round <= all.size()) return {all[round - 1]};
    std::mt19937_64 random(seed_ ^ (variant * 0x9e3779b97f4a7c15u));
    std::map<std::pair<size_t, int>, Mutation> chosen;  // at most one for each argument, in order
    const size_t count = 2 + random() % 2;
    for (size_t i = 0; i < count; ++i) {
      const Mutation& mutation = all[random() % all.size()];
      chosen.insert({{mutation.argument, mutation.item}, mutation});
    }
    std::vector<Mutation> mutations;
    for (const auto& [where, mutation] : chosen) mutations.push_back(mutation);
    return mutations;
  }

  std::string describe(uint64_t variant) {
    std::string text = full_name(call(variant).op);
    for (const std::string& token : call(variant).tokens) text += " " + token;
    for (const Mutation& mutation : mutations(variant)) text += "  " + mutation.text();
    return text;
  }

 private:
  const std::vector<Call>& calls_;
  const uint64_t seed_;
  std::vector<std::vector<Mutation>> mutations_;
};

// Operators accept the calls with the contents of seed 1. Later rounds use other contents.
CheckOptions check_options(const Options& options, uint64_t variant, uint64_t round) {
  return {options.without_guards, round == 0 ? 1 : options.seed + round, variant % 4 != 3};
}

// Returns true if every operator that a graph may name has a call, and no other operator has one.
bool is_complete(const std::vector<Call>& calls) {
  std::set<std::string> called;
  bool complete = true;
  for (const Call& call : calls) {
    called.insert(full_name(call.op));
    if (internal::is_allowed_operator(full_name(call.op))) continue;
    std::cerr << full_name(call.op) << " has a call, but is not allowed in graphs\n";
    complete = false;
  }
  for (const std::string& name : internal::allowed_operators()) {
    if (called.contains(name)) continue;
    std::cerr << name << " is allowed in graphs, but has no call\n";
    complete = false;
  }
  return complete;
}

// The position and the counts of a child, in memory that it shares with its parent.
struct Progress {
  std::atomic<uint64_t> variant{0}, done{0}, accepted{0};
};

void run_child(const Options& options, Variants& variants, uint64_t first, uint64_t last,
               Clock::time_point end, Progress& progress, int findings) {
  const uint64_t enough = std::min(last, first + kVariantsPerChild * options.jobs);
  for (uint64_t n = first; n < enough && Clock::now() < end; n += options.jobs) {
    progress.variant = n;
    const itimerval limit{{0, 0}, {kSecondsPerVariant, 0}};
    setitimer(ITIMER_REAL, &limit, nullptr);
    const std::vector<Mutation> mutations = variants.mutations(n);
    Verdict verdict =
        check_call(variants.call(n), mutations, check_options(options, n, variants.round(n)));
    if (variants.round(n) == 0 && mutations.empty() && !verdict.accepted)
      verdict.finding = "the original call fails: " + verdict.error;
    progress.done += 1;
    progress.accepted += verdict.accepted;
    if (verdict.finding.empty()) continue;
    std::string line = std::to_string(n) + " " + verdict.finding.substr(0, 600);
    for (char& c : line) c = c == '\n' ? ' ' : c;
    line += '\n';
    if (write(findings, line.data(), line.size()) < 0) _exit(3);
  }
  progress.variant = enough;
}

class Fuzzer {
 public:
  Fuzzer(const Options& options, const std::vector<Call>& calls)
      : options_(options), calls_(calls), variants_(calls, options.seed) {
    void* shared = mmap(nullptr, sizeof(Progress) * options.jobs, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    progress_ = new (shared) Progress[options.jobs];
    if (pipe(pipe_) != 0) std::abort();
    last_ = options.only_good ? calls.size() : uint64_t{1} << 62;
  }

  int run() {
    const auto end = Clock::now() + std::chrono::seconds(options_.seconds);
    for (int job = 0; job < options_.jobs; ++job) jobs_[start(job, job, end)] = job;
    while (!jobs_.empty()) {
      drain(50);
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid <= 0) continue;
      const int job = jobs_.at(pid);
      jobs_.erase(pid);
      const uint64_t at = progress_[job].variant;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        if (at < last_ && Clock::now() < end) jobs_[start(job, at, end)] = job;
        continue;
      }
      report(at, WIFSIGNALED(status)
                     ? WTERMSIG(status) == SIGALRM
                           ? "ran longer than " + std::to_string(kSecondsPerVariant) + " s"
                           : std::string("ended with ") + strsignal(WTERMSIG(status))
                     : "exited with " + std::to_string(WEXITSTATUS(status)));
      jobs_[start(job, at + options_.jobs, end)] = job;
    }
    drain(0);
    return summarise();
  }

 private:
  pid_t start(int job, uint64_t first, Clock::time_point end) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    run_child(options_, variants_, first, last_, end, progress_[job], pipe_[1]);
    _exit(0);
  }

  void drain(int milliseconds) {
    pollfd ready{pipe_[0], POLLIN, 0};
    while (poll(&ready, 1, milliseconds) > 0) {
      char buffer[4096];
      const ssize_t count = read(pipe_[0], buffer, sizeof buffer);
      if (count <= 0) return;
      text_.append(buffer, count);
      for (size_t line; (line = text_.find('\n')) != std::string::npos; text_.erase(0, line + 1)) {
        const size_t space = text_.find(' ');
        report(std::stoull(text_.substr(0, space)), text_.substr(space + 1, line - space - 1));
      }
      milliseconds = 0;
    }
  }

  void report(uint64_t variant, const std::string& what) {
    const std::string name = full_name(variants_.call(variant).op);
    if (++findings_[name] > 3) return;
    std::cout << "FINDING variant " << variant << ": " << what << "\n    "
              << variants_.describe(variant) << std::endl;
    if (options_.stop_at_first) {
      for (const auto& [pid, job] : jobs_) kill(pid, SIGKILL);
      std::exit(1);
    }
  }

  int summarise() {
    uint64_t done = 0, accepted = 0;
    for (int i = 0; i < options_.jobs; ++i) {
      done += progress_[i].done;
      accepted += progress_[i].accepted;
    }
    std::set<std::string> overloads;
    for (const Call& call : calls_) overloads.insert(full_name(call.op));
    int findings = 0;
    for (const auto& [name, count] : findings_) findings += count;
    for (const auto& [name, count] : findings_) {
      std::cout << count << " findings in " << name << "\n";
    }
    std::cout << overloads.size() << " overloads, " << calls_.size() << " calls, " << done
              << " variants, of which " << accepted << " ran and the others gave errors; "
              << findings << " findings in " << findings_.size() << " overloads\n";
    return findings == 0 ? 0 : 1;
  }

  const Options& options_;
  const std::vector<Call>& calls_;
  Variants variants_;
  Progress* progress_;
  uint64_t last_;
  int pipe_[2];
  std::string text_;
  std::map<std::string, int> findings_;
  std::map<pid_t, int> jobs_;  // job number of each child
};

int run_one(const Options& options, const std::vector<Call>& calls) {
  Variants variants(calls, options.seed);
  std::cout << variants.describe(options.variant) << std::endl;
  const Verdict verdict =
      check_call(variants.call(options.variant), variants.mutations(options.variant),
                 check_options(options, options.variant, variants.round(options.variant)));
  std::cout << (verdict.accepted ? "ran" : "error: " + verdict.error) << "\n"
            << (verdict.finding.empty() ? "" : "FINDING " + verdict.finding + "\n");
  return verdict.finding.empty() ? 0 : 1;
}

int main_function(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  at::set_num_threads(1);
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  GuardedMemory::install();
  internal::register_own_operators();
  internal::register_row_updates();
  std::ifstream file(options.calls);
  if (!file) {
    std::cerr << "cannot read " << options.calls << "\n";
    return 2;
  }
  std::vector<Call> calls = read_calls(file);
  if (options.only_good && !is_complete(calls)) return 1;
  std::erase_if(calls, [&](const Call& call) {
    return !options.only.empty() && !is_wanted(call, options.only);
  });
  if (calls.empty()) {
    std::cerr << "no call matches --only\n";
    return 2;
  }
  return options.variant >= 0 ? run_one(options, calls) : Fuzzer(options, calls).run();
}

}  // namespace
}  // namespace trireme::fuzz

int main(int argc, char** argv) {
  return trireme::fuzz::main_function(argc, argv);
}
