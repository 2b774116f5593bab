// A user who gets a cluster spec or a flag wrong sees a message that says what is wrong and what to
// do. The tests compare the whole message of the real binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/integration/commands.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Mistake {
  std::string name;
  std::vector<std::string> arguments;
  std::string file = {};       // content of cluster.json
  std::string tf_config = {};  // value of TF_CONFIG
  std::string message;         // expected text after "trireme: "
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

constexpr char kGood[] =
    R"({"worker": ["127.0.0.1:2222", "127.0.0.1:2223"], "ps": ["127.0.0.1:2221"]})";

const std::vector<Mistake>& mistakes() {
  static const auto* list = new std::vector<Mistake>{
      // Specs.
      {.name = "TruncatedJson",
       .arguments = {"server"},
       .tf_config = R"({"cluster": {"worker": ["127.0.0.1:2222"])",
       .message = "TF_CONFIG is not valid JSON at line 1, column 42"},
      {.name = "DuplicateAddress",
       .arguments = {"server", "--job", "worker", "--task", "0", "--cluster", "cluster.json"},
       .file = R"({"worker": ["127.0.0.1:2222", "127.0.0.1:2222"]})",
       .message = "cluster file 'cluster.json': cluster spec: job 'worker', task 1: address "
                  "'127.0.0.1:2222' is already used by /job:worker/task:0; every task needs its "
                  "own"},
      {.name = "AddressWithoutPort",
       .arguments = {"status"},
       .tf_config = R"({"cluster": {"worker": ["localhost"]}})",
       .message = "TF_CONFIG: cluster spec: job 'worker', task 0: address 'localhost' has no port; "
                  "write host:port"},
      {.name = "UnknownRole",
       .arguments = {"status", "--cluster", "cluster.json"},
       .file = R"({"master": ["127.0.0.1:2222"]})",
       .message =
           "cluster file 'cluster.json': cluster spec: job 'master' is not a valid role; the roles "
           "are worker, chief, ps and evaluator"},
      {.name = "TwoChiefs",
       .arguments = {"status", "--cluster", "cluster.json"},
       .file = R"({"chief": ["127.0.0.1:2222", "127.0.0.1:2223"]})",
       .message = "cluster file 'cluster.json': cluster spec: job 'chief' has 2 tasks; a cluster "
                  "has one chief at most"},
      {.name = "MissingFile",
       .arguments = {"server", "--job", "ps", "--task", "0", "--cluster", "cluster.json"},
       .message = "cluster file 'cluster.json': cannot be read: No such file or directory"},
      {.name = "PublicAddressWithoutCertificates",
       .arguments = {"server", "--job", "worker", "--task", "0", "--cluster", "cluster.json"},
       .file = R"({"worker": ["0.0.0.0:2222"]})",
       .message =
           "/job:worker/task:0: refused to listen on 0.0.0.0:2222, which other machines may "
           "reach: this server has no certificates. Give it some with --certs (`trireme certs "
           "init` "
           "makes them), use a loopback address (127.0.0.1, localhost, [::1]), or pass --insecure "
           "if "
           "every machine that can reach the address may be trusted"},
      // Flags.
      {.name = "TaskOutOfRange",
       .arguments = {"server", "--job", "worker", "--task", "7", "--cluster", "cluster.json"},
       .file = kGood,
       .message =
           "--job=worker --task=7: cluster spec: job 'worker' has no task 7; it has 2 tasks, "
           "0 to 1"},
      {.name = "UnknownJob",
       .arguments = {"server", "--job", "master", "--task", "0", "--cluster", "cluster.json"},
       .file = kGood,
       .message =
           "--job=master is not a valid role; the roles are worker, chief, ps and evaluator"},
      {.name = "TaskIsNotANumber",
       .arguments = {"server", "--job", "worker", "--task", "one", "--cluster", "cluster.json"},
       .file = kGood,
       .message = "--task=one is not a number of 0 or more"},
      {.name = "MissingTask",
       .arguments = {"server", "--cluster", "cluster.json"},
       .file = kGood,
       .message = "no task was given to serve: give --job and --task; the cluster has ps 0; worker "
                  "0,1"},
      {.name = "ServerWithoutCluster",
       .arguments = {"server", "--devices", "cpu:2"},
       .message = "no cluster was given to serve in: give --cluster FILE with --job and --task, or "
                  "set TF_CONFIG"},
      {.name = "StatusWithoutCluster",
       .arguments = {"status"},
       .message = "no cluster was given to ask: give --cluster FILE or --target HOST:PORT, or set "
                  "TF_CONFIG"},
      {.name = "TargetWithoutPort",
       .arguments = {"status", "--target", "127.0.0.1"},
       .message = "--target: address '127.0.0.1' has no port; write host:port"},
      {.name = "UnknownDevice",
       .arguments = {"server", "--job", "worker", "--task", "0", "--cluster", "cluster.json",
                     "--devices", "tpu:1"},
       .file = kGood,
       .message = "devices 'tpu:1': tpu is not supported; the types are cpu and gpu"},
      {.name = "ThreadsBelowZero",
       .arguments = {"server", "--threads=-1"},
       .message = "--threads=-1 is not a valid number of threads; give 0 to leave it to LibTorch"},
      {.name = "UnknownLogLevel",
       .arguments = {"server", "--log-level", "loud"},
       .message = "unknown log level 'loud'; use debug, info, warning, error or off"},
      {.name = "TimeoutOfZero",
       .arguments = {"status", "--cluster", "cluster.json", "--timeout", "0"},
       .file = kGood,
       .message =
           "--timeout=0 is not a valid time; give a number of seconds above 0 and up to 1e7"},
      {.name = "UnknownFlag",
       .arguments = {"server", "--devcies", "cpu:2"},
       .message = "'--devcies' was not expected; see `trireme server --help`"},
      {.name = "UnknownCommand",
       .arguments = {"serve"},
       .message = "'serve' is not a command; the commands are certs, checkpoint, graph, jobs, "
                  "launch, server and "
                  "status; see `trireme --help`"},
      {.name = "LaunchWithoutTasks",
       .arguments = {"launch", "--workers", "0", "--", "true"},
       .message = "--workers=0 --ps=0 is not a valid cluster; give at least one task"},
      {.name = "LaunchWithoutProgram",
       .arguments = {"launch", "--workers", "3", "--ps", "2"},
       .message = "no program was given to run; give it after two dashes: trireme launch --workers "
                  "3 --ps 2 -- ./program"},
      {.name = "LaunchMirroredSameBinary",
       .arguments = {"launch", "--mirrored", "--same-binary", "--", "true"},
       .message = "--mirrored cannot be used with --same-binary: it already runs the program as "
                  "each worker, and there are no servers"},
      {.name = "MissingDataRoot",
       .arguments = {"server", "--job", "worker", "--task", "0", "--data-root", "/no/such/folder"},
       .tf_config = R"({"cluster": {"worker": ["localhost:0"]}})",
       .message = "/job:worker/task:0: the data root '/no/such/folder' is not a folder on this "
                  "machine; create it, or give another --data-root"},
      {.name = "StatusOfAPortThatOnlyItsServerKnows",
       .arguments = {"status"},
       .tf_config = R"({"cluster": {"worker": ["localhost:0"]}})",
       .message = "cluster spec: job 'worker', task 0: the port of 'localhost:0' is not known, "
                  "since the task's server picks it; give the port that the server listens on"},
      {.name = "CertsInitWithoutAFolder",
       .arguments = {"certs", "init"},
       .message = "DIR is required; see `trireme certs init --help`"},
      {.name = "MissingProgram",
       .arguments = {"launch", "--", "./tarin"},
       .message = "cannot run './tarin': No such file or directory"},
  };
  return *list;
}

class Messages : public testing::TestWithParam<Mistake> {};

TEST_P(Messages, SayWhatIsWrongAndWhatToDo) {
  const Mistake& mistake = GetParam();
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) /
      absl::StrCat("trireme_messages_", getpid(), "_", mistake.name);
  std::filesystem::create_directories(folder);
  if (!mistake.file.empty()) std::ofstream(folder / "cluster.json") << mistake.file;

  SubprocessOptions command = trireme_command(mistake.arguments, mistake.tf_config);
  command.directory = folder;
  const CompletedProcess done = value_or_throw(run_process(command, after(kLimit)));
  EXPECT_EQ(done.stderr_text, absl::StrCat("trireme: ", mistake.message, "\n"));
  EXPECT_EQ(done.stdout_text, "");
  EXPECT_EQ(done.status.to_string(), "exit code 2");
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Messages, testing::ValuesIn(mistakes()),
                         [](const auto& info) { return info.param.name; });

TEST(Help, ShowsExamplesOfTheCommand) {
  for (const std::string& command :
       {"launch", "server", "status", "jobs", "checkpoint", "certs", "graph"}) {
    const CompletedProcess done = run_trireme({command, "--help"});
    EXPECT_EQ(done.status.code, 0);
    EXPECT_THAT(done.stdout_text, HasSubstr("Examples:\n  trireme " + command + " "));
  }
  EXPECT_THAT(run_trireme({"certs", "init", "--help"}).stdout_text,
              HasSubstr("Examples:\n  trireme certs init "));
  EXPECT_THAT(run_trireme({"graph", "show", "--help"}).stdout_text,
              HasSubstr("Examples:\n  trireme graph show "));
  EXPECT_THAT(run_trireme({"--version"}).stdout_text, StartsWith("trireme 0."));
}

TEST(Help, IsACommandToo) {
  const std::string all = run_trireme({"--help"}).stdout_text;
  EXPECT_THAT(all, HasSubstr("Examples:\n  trireme launch "));
  EXPECT_EQ(run_trireme({"help"}).stdout_text, all);
  const std::string init = run_trireme({"certs", "init", "--help"}).stdout_text;
  EXPECT_EQ(run_trireme({"help", "certs", "init"}).stdout_text, init);
  EXPECT_NE(init, all);
}

TEST(Help, OfLaunchNamesTheProgram) {
  EXPECT_THAT(run_trireme({"launch", "--help"}).stdout_text,
              HasSubstr("Usage: trireme launch [OPTIONS] -- PROGRAM [ARGUMENT...]\n"));
}

}  // namespace
}  // namespace trireme
