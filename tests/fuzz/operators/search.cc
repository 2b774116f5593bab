// Finds arguments that operators accept, by trial. For each operator named on standard input that
// has no call in CALLS, prints some calls as lines of calls.txt. This serves operators that no test
// captures, and those of a new LibTorch. Each operator runs in a child process, since it may crash.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>
#include <set>

#include "tests/fuzz/operators/call.h"
#include "tests/fuzz/operators/check_call.h"
#include "tests/fuzz/operators/guarded_memory.h"
#include "trireme/graph/operators.h"
#include "trireme/optim/row_updates.h"

namespace trireme::fuzz {
namespace {

constexpr int kTries = 20000, kWanted = 3, kSeconds = 20;

// Guesses tokens that are typical for an argument of a given name and type.
class Guesser {
 public:
  explicit Guesser(uint64_t seed) : random_(seed) {}

  std::vector<std::string> guess(const c10::FunctionSchema& schema) {
    static const std::vector<std::string> shapes = {"4",       "3,4",   "4,4",       "2,3,4",
                                                    "2,3,4,4", "2,4,4", "2,3,4,4,4", ""};
    shape_ = pick(shapes);
    dtype_ = pick({"f32", "f32", "f32", "f64", "i64", "c64", "bool"});
    std::vector<std::string> tokens;
    for (const c10::Argument& argument : schema.arguments()) {
      tokens.push_back(token(argument.type(), argument.name()));
    }
    return tokens;
  }

 private:
  template <typename T>
  T pick(const std::vector<T>& options) {
    return options[random_() % options.size()];
  }
  std::string pick(std::initializer_list<const char*> options) {
    return *(options.begin() + random_() % options.size());
  }

  std::string tensor(const std::string& name) {
    std::string shape = shape_;
    if (random_() % 4 == 0) {
      shape =
          pick({"", "1", "4", "3", "3,4", "4,4", "2,3,4", "2,3,4,4", "2,4", "2,3,8,8", "2,3,2,2"});
    }
    std::string dtype = dtype_;
    if (random_() % 6 == 0) dtype = pick({"f32", "i64", "bool", "f64"});
    if (name.find("ind") != std::string::npos || name == "target") dtype = "i64";
    if (name.find("mask") != std::string::npos || name == "condition") dtype = "bool";
    return dtype + "[" + shape + "]" + (dtype[0] == 'f' && random_() % 2 ? "~0~1" : "");
  }

  std::string numbers(const std::string& name) {
    std::string list;
    const size_t count = name == "dims" || name == "dim" ? 1 + random_() % 2 : random_() % 6;
    for (size_t i = 0; i < count; ++i) {
      const std::string number = name.find("size") != std::string::npos || name == "self"
                                     ? pick({"2", "3", "4", "8", "1"})
                                     : pick({"0", "1", "2", "1", "3"});
      list += (list.empty() ? "" : ",") + number;
    }
    if (name.find("size") != std::string::npos && random_() % 2 == 0) list = shape_;
    return "(" + list + ")";
  }

  std::string token(const c10::TypePtr& type, const std::string& name) {
    switch (type->kind()) {
      case c10::TypeKind::OptionalType:
        if (name == "layout" || name == "pin_memory" || name == "memory_format") return "-";
        if (random_() % 2 == 0) return "-";
        return token(type->castRaw<c10::OptionalType>()->getElementType(), name);
      case c10::TypeKind::TensorType:
        return tensor(name);
      case c10::TypeKind::ListType: {
        const auto element = type->castRaw<c10::ListType>()->getElementType()->kind();
        if (element == c10::TypeKind::TensorType || element == c10::TypeKind::OptionalType) {
          const std::string item = tensor(name);
          return random_() % 2 ? "{" + item + "}" : "{" + item + ";" + item + "}";
        }
        if (element == c10::TypeKind::BoolType) return pick({"(true,true)", "(true,true,true)"});
        if (element == c10::TypeKind::FloatType) return pick({"(2.0)", "(1.0,1.0)", "(2.0,2.0)"});
        if (element == c10::TypeKind::NumberType) return pick({"(1.0)", "(1.0,2.0)"});
        return numbers(name);
      }
      case c10::TypeKind::BoolType:
        return pick({"true", "false"});
      case c10::TypeKind::FloatType:
        return pick({"0.5", "1.0", "2.0"});
      case c10::TypeKind::NumberType:
        return pick({"1", "2", "0.5", "1.0"});
      case c10::TypeKind::StringType:
        return pick({"'trunc'", "'mean'", "'none'", "'sum'", "'add'"});
      case c10::TypeKind::DeviceObjType:
        return "cpu";
      case c10::TypeKind::GeneratorType:
        return "-";
      default:
        if (name == "dtype") return pick({"6", "7"});
        return name.find("dim") != std::string::npos ? pick({"0", "1", "-1"})
                                                     : pick({"0", "1", "2", "3", "4"});
    }
  }

  std::mt19937_64 random_;
  std::string shape_, dtype_;
};

void search(const c10::OperatorHandle& op) {
  alarm(kSeconds);
  Guesser guesser(7);
  std::set<std::string> kinds;  // combinations of dtypes for which a call was found
  for (int i = 0; i < kTries && kinds.size() < kWanted; ++i) {
    const Call call{op, guesser.guess(op.schema())};
    std::string line = full_name(op), kind;
    for (const std::string& token : call.tokens) {
      line += " " + token;
      kind += token.substr(0, token.find('[')) + " ";
    }
    if (kinds.contains(kind)) continue;
    try {
      if (!check_call(call, {}, {.seed = 1}).accepted) continue;
    } catch (const std::exception&) {
      continue;
    }
    kinds.insert(kind);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

int main_function(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: search_calls CALLS <NAMES >MORE_CALLS\n";
    return 2;
  }
  at::set_num_threads(1);
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  GuardedMemory::install();
  internal::register_own_operators();
  internal::register_row_updates();
  std::ifstream file(argv[1]);
  std::set<std::string> known;
  for (const Call& call : read_calls(file)) known.insert(full_name(call.op));
  for (std::string name; std::getline(std::cin, name);) {
    if (known.contains(name)) continue;
    const size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (!op) {
      std::cerr << name << " is not an operator\n";
      continue;
    }
    const pid_t pid = fork();
    if (pid == 0) {
      search(*op);
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) std::cerr << name << " ended with signal " << WTERMSIG(status) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace trireme::fuzz

int main(int argc, char** argv) {
  return trireme::fuzz::main_function(argc, argv);
}
