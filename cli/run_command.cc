#include "cli/run_command.h"

#include <torch/headeronly/version.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "trireme/base/version.h"
#include "trireme/rpc/frame.h"

namespace trireme {
namespace {

constexpr char kMainFooter[] = R"(
Examples:
  trireme launch --workers 3 --ps 2 -- ./train       a whole cluster on this machine, for one program
  trireme server --job ps --task 0 --cluster c.json  one task, on the machine where it should run
  trireme status --cluster c.json                    which tasks are up, since when, their devices
  trireme jobs ls --cluster c.json                   whose variables the servers hold
  trireme checkpoint ls checkpoints                  the checkpoints in a folder
  trireme graph show step.graph                      the operators of a captured function
  trireme graph operators                            all operators that captured functions may use
  trireme certs init certs --cluster c.json          certificates, so that only these tasks connect

A cluster file lists the address of every task of every role, and all processes use the same file:
  {"worker": ["a:2222", "b:2222"], "ps": ["a:2221"]}
Without a file, TF_CONFIG is read, or the variables of torchrun or Slurm.

See `trireme help COMMAND` for each command.)";

// Lowers the first letter of a sentence ("A subcommand is required"), but not of a name
// ("TF_CONFIG").
std::string lower_first(std::string text) {
  if (text.size() > 1 && std::islower(text[1])) text[0] = static_cast<char>(std::tolower(text[0]));
  return text;
}

// Returns the first of the words that is in `some`. CLI11 lists the words that it did not
// understand in an order of its own.
std::string first_of(const std::vector<std::string>& words, const std::vector<std::string>& some) {
  for (const std::string& word : words) {
    if (std::find(some.begin(), some.end(), word) != some.end()) return word;
  }
  return some.empty() ? "" : some[0];
}

int usage_error(const CLI::App& app, const std::string& text) {
  std::string command = "trireme";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    absl::StrAppend(&command, " ", at->get_name());
  }
  say(absl::StrCat(text, "; see `", command, " --help`"));
  return kUsageError;
}

int run(std::vector<std::string> words, Invocation invocation) {
  CLI::App app("Trireme: a distributed training runtime for LibTorch programs.", "trireme");
  app.set_version_flag("--version",
                       absl::StrCat("trireme ", version(), " (protocol ", kProtocolVersion,
                                    ", LibTorch ", TORCH_VERSION, ")"));
  add_certs_command(app, invocation);
  add_checkpoint_command(app, invocation);
  add_launch_command(app, invocation);
  add_server_command(app, invocation);
  add_status_command(app, invocation);
  add_graph_command(app, invocation);
  add_jobs_command(app, invocation);
  // Set after the commands, which would inherit them. The second lets us name an unknown command
  // ourselves.
  app.footer(kMainFooter);
  app.allow_extras();
  if (!words.empty() && words[0] == "help") {  // `help launch` is `launch --help`
    words.erase(words.begin());
    words.push_back("--help");
  }
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ExtrasError&) {
    return usage_error(
        app, absl::StrCat("'", first_of(words, app.remaining(true)), "' was not expected"));
  } catch (const CLI::ParseError& error) {
    return usage_error(app, lower_first(error.what()));
  }
  const std::vector<std::string> unknown = app.remaining();
  if (!unknown.empty() && app.get_subcommands().empty()) {
    return usage_error(
        app, absl::StrCat("'", unknown[0],
                          "' is not a command; the commands are certs, checkpoint, graph, jobs, "
                          "launch, server and status"));
  }
  if (!unknown.empty()) {
    return usage_error(app, absl::StrCat("'", first_of(words, unknown), "' was not expected"));
  }
  if (!invocation.run) {
    return usage_error(
        app,
        "no command was given; the commands are certs, checkpoint, graph, jobs, launch, server "
        "and status");
  }
  return invocation.run();
}

}  // namespace

int run_command(int argc, char** argv) {
  // The words after "--" belong to another program; our own options are not looked for in them.
  char** dashes = argv + 1;
  while (dashes < argv + argc && std::strcmp(*dashes, "--") != 0) ++dashes;
  Invocation invocation;
  if (dashes < argv + argc) invocation.program.assign(dashes + 1, argv + argc);
  try {
    return run({argv + 1, dashes}, std::move(invocation));
  } catch (const Error& error) {
    say(text_of(error));
    return exit_code_of(error);
  } catch (const std::exception& error) {
    say(error.what());
    return kRunTimeError;
  }
}

}  // namespace trireme
