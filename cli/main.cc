// The `trireme` command: starts servers, shows them, and runs whole clusters on one machine.
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
  trireme status --cluster c.json                    who is up, since when, with which devices
  trireme graph show step.graph                      the operators of a captured function
  trireme graph operators                            the operators that it may consist of
  trireme certs init certs --cluster c.json          certificates, so that only these tasks get in

A cluster file names every task of every role once, and all processes share it:
  {"worker": ["a:2222", "b:2222"], "ps": ["a:2221"]}
Instead of a file, TF_CONFIG is read, or the variables of torchrun or Slurm.

`trireme COMMAND --help` tells more.)";

std::string lower_first(std::string text) {
  // "A subcommand is required" but "TF_CONFIG".
  if (text.size() > 1 && std::islower(text[1])) text[0] = static_cast<char>(std::tolower(text[0]));
  return text;
}

// The first word that was not understood; CLI11 tells them in an order of its own.
std::string first_of(const std::vector<std::string>& words, const std::vector<std::string>& some) {
  for (const std::string& word : words) {
    if (std::find(some.begin(), some.end(), word) != some.end()) return word;
  }
  return some.empty() ? "" : some[0];
}

int usage_error(const CLI::App& app, const std::string& text) {
  std::string command = "trireme";
  for (const CLI::App* sub : app.get_subcommands()) absl::StrAppend(&command, " ", sub->get_name());
  say(absl::StrCat(text, "; see `", command, " --help`"));
  return kUsageError;
}

int run(std::vector<std::string> words, Invocation invocation) {
  CLI::App app("Trireme: a distributed training runtime for LibTorch programs.", "trireme");
  app.set_version_flag("--version",
                       absl::StrCat("trireme ", version(), " (protocol ", kProtocolVersion,
                                    ", LibTorch ", TORCH_VERSION, ")"));
  app.footer(kMainFooter);
  add_certs_command(app, invocation);
  add_launch_command(app, invocation);
  add_server_command(app, invocation);
  add_status_command(app, invocation);
  add_graph_command(app, invocation);
  app.allow_extras();  // after the commands, which would inherit it: to name what is no command
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
                          "' is no command; there are certs, graph, launch, server and status"));
  }
  if (!unknown.empty()) {
    return usage_error(app, absl::StrCat("'", first_of(words, unknown), "' was not expected"));
  }
  if (!invocation.run) {
    return usage_error(app, "say what to do: certs, graph, launch, server or status");
  }
  return invocation.run();
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  // What stands after "--" is another program's; no option of ours is looked for in it.
  char** dashes = argv + 1;
  while (dashes < argv + argc && std::strcmp(*dashes, "--") != 0) ++dashes;
  trireme::Invocation invocation;
  if (dashes < argv + argc) invocation.program.assign(dashes + 1, argv + argc);
  try {
    return trireme::run({argv + 1, dashes}, std::move(invocation));
  } catch (const trireme::Error& error) {
    trireme::say(trireme::text_of(error));
    return trireme::exit_code_of(error);
  } catch (const std::exception& error) {
    trireme::say(error.what());
    return trireme::kRunTimeError;
  }
}
