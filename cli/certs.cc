#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "trireme/base/status.h"
#include "trireme/rpc/certificates.h"

namespace trireme {
namespace {

constexpr char kCertsFooter[] = R"(
Examples:
  trireme certs init certs --cluster cluster.json
  trireme server --certs certs --job worker --task 0 --cluster cluster.json
  trireme status --certs certs --cluster cluster.json

Creates a certificate authority and a folder of certificates, signed by it, for every task of the
cluster and one for clients. Copy each task's folder to its own host and keep authority.key secret: it
is needed only to create certificates. If the folder already has an authority, the authority is kept
and every certificate is replaced. Renew certificates in this way; running processes load the new ones
within seconds.)";

constexpr int kMostDays = 3650;

struct CertsFlags {
  std::string folder, cluster;
  int days = 365;
};

int init(const CertsFlags& options) {
  if (options.days < 1 || options.days > kMostDays) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("--days=", options.days, " is not valid; give 1 to ", kMostDays, " days"));
  }
  const ClusterSpec spec = resolve_cluster("", "", options.cluster).spec;
  if (spec.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no cluster was given to create certificates for: give --cluster FILE, or set "
                "TF_CONFIG");
  }
  const bool kept = std::filesystem::exists(std::filesystem::path(options.folder) / kAuthorityFile);
  const auto written = value_or_throw(
      write_certificates(options.folder, spec, {.until = std::chrono::hours(24) * options.days}));
  std::printf("%s: %s, and wrote the certificates of %zu tasks and of clients, valid for %d days\n",
              options.folder.c_str(), kept ? "kept the authority" : "made an authority",
              written.size() - 1, options.days);
  std::printf("Each task needs only its own folder (--certs %s/%s); keep authority.key secret.\n",
              options.folder.c_str(), written.front().c_str());
  return 0;
}

}  // namespace

void add_certs_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("certs", "Create certificates for the tasks of a cluster");
  command->require_subcommand(1);
  command->footer(kCertsFooter);
  CLI::App* make = command->add_subcommand("init", "Create or renew the certificates in a folder");
  auto options = std::make_shared<CertsFlags>();
  make->add_option("DIR", options->folder, "The folder; it is created if it does not exist")
      ->required();
  make->add_option("--cluster", options->cluster, "The cluster as a JSON file")->type_name("FILE");
  make->add_option("--days", options->days, "Days for which the certificates are valid")
      ->capture_default_str();
  make->callback([&invocation, options] { invocation.run = [options] { return init(*options); }; });
}

}  // namespace trireme
