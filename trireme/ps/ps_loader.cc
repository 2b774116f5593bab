#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/pieces.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/ps_saver.h"
#include "trireme/ps/save_service.h"
#include "trireme/ps/saves.pb.h"
#include "trireme/rpc/call_all.h"

// Each server reads the bytes of its own shards, in calls of limited size, so that no call takes
// long. The servers work at the same time. A tensor of the checkpoint may be read by several
// servers, in pieces, so its checksum is known only here, when all have answered.
namespace trireme::internal {
namespace {

constexpr uint64_t kLoadBytes = uint64_t{512} << 20;  // most bytes that one call reads
constexpr int kLoadPieces = 100'000;                  // most pieces of one call

// The calls to one server.
struct ServerLoads {
  struct Call {
    LoadRequest request;
    std::vector<PieceCrc> pieces;  // in the order of the request; without checksums
    uint64_t bytes = 0;
  };
  std::vector<Call> calls;

  LoadRequest::Target& add_target(uint64_t handle, const std::string& rule, int slot) {
    if (calls.empty()) calls.emplace_back();
    LoadRequest::Target& target = *calls.back().request.add_targets();
    target.set_handle(handle);
    target.set_rule(rule);
    if (slot >= 0) target.set_slot(slot);
    return target;
  }

  // Adds the pieces of one tensor. Begins a new call when the last one is full.
  void add(uint64_t handle, const std::string& rule, int slot,
           const std::vector<ReadPiece>& pieces) {
    LoadRequest::Target* target = &add_target(handle, rule, slot);
    for (ReadPiece piece : pieces) {
      while (piece.bytes > 0) {
        if (calls.back().bytes == kLoadBytes || calls.back().pieces.size() == kLoadPieces) {
          calls.emplace_back();
          target = &add_target(handle, rule, slot);
        }
        Call& call = calls.back();
        const uint64_t bytes = std::min(piece.bytes, kLoadBytes - call.bytes);
        LoadRequest::Piece& added = *target->add_pieces();
        added.set_file(piece.file);
        added.set_offset(piece.offset);
        added.set_bytes(bytes);
        added.set_to(piece.to);
        call.pieces.push_back({piece.file, piece.offset, bytes, 0});
        call.bytes += bytes;
        piece.offset += bytes;
        piece.to += bytes;
        piece.bytes -= bytes;
      }
    }
  }
};

absl::Status check_fits(const PsLoad& load) {
  const VariableLayout& layout = load.variable.layout();
  const TensorShape saved{load.saved->dtype, load.saved->sizes};
  const TensorShape expected{layout.dtype, layout.sizes};
  if (saved == expected) return absl::OkStatus();
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("the checkpoint has it as ", to_string(saved), ", but it is ",
                                  to_string(expected)),
                     layout.object());
}

// Returns the number of updates of the saved shards that have some of these rows. They differ only
// if gradients of rows have gone to some of the shards.
double step_of_rows(const SavedVariable& saved, const RowRange& rows) {
  double step = 0;
  for (const SavedShard& shard : saved.shards) {
    const bool overlaps =
        shard.first < rows.first + rows.count && rows.first < shard.first + shard.count;
    if (overlaps || saved.shards.size() == 1) step = std::max(step, shard.step);
  }
  return step;
}

void add_load(const PsLoad& load, std::vector<ServerLoads>& servers) {
  const auto& shards = load.variable.layout().shards;
  const SavedVariable& saved = *load.saved;
  for (size_t i = 0; i < shards.size(); ++i) {
    ServerLoads& server = servers[shards[i].server];
    const RowRange rows = shards[i].rows;
    const uint64_t handle = load.variable.handle(i);
    server.add(handle, saved.rule, -1, pieces_for(saved, -1, rows.first, rows.count));
    if (!load.slots || saved.rule.empty()) continue;
    for (size_t slot = 0; slot < saved.slots.size(); ++slot) {
      const int index = static_cast<int>(slot);
      server.add(handle, saved.rule, index, pieces_for(saved, index, rows.first, rows.count));
    }
    server.add_target(handle, saved.rule, -1).set_step(step_of_rows(saved, rows));
  }
}

}  // namespace

absl::Status ps_load(PsClient& client, const std::string& directory, const Manifest& manifest,
                     const std::vector<PsLoad>& loads, const PsSave::Progress& progress) {
  TRIREME_ASSIGN_OR_RETURN(const std::string folder,
                           try_call([&] { return std::filesystem::absolute(directory).string(); }));
  std::vector<ServerLoads> servers(client.servers());
  for (const PsLoad& load : loads) {
    TRIREME_RETURN_IF_ERROR(check_fits(load));
    add_load(load, servers);
  }
  uint64_t done = 0, total = 0;
  size_t rounds = 0;
  const VariableScope scope = client.scope();
  for (ServerLoads& server : servers) {
    rounds = std::max(rounds, server.calls.size());
    for (ServerLoads::Call& call : server.calls) {
      total += call.bytes;
      call.request.mutable_scope()->set_job(scope.job);
      call.request.mutable_scope()->set_generation(scope.generation);
      call.request.mutable_scope()->set_container(scope.container);
      call.request.set_directory(folder);
      for (const auto& file : manifest.files) call.request.add_files(file.name);
    }
  }
  std::vector<PieceCrc> pieces;
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<ServerLoads::Call*> sent;
    std::vector<TargetedCall> calls;
    for (int i = 0; i < client.servers(); ++i) {
      if (round >= servers[i].calls.size()) continue;
      sent.push_back(&servers[i].calls[round]);
      calls.push_back({&client.channel(i), make_message(sent.back()->request),
                       client.call_options(sent.back()->bytes, true)});
    }
    TRIREME_ASSIGN_OR_RETURN(const Responses responses, call_all(kLoadVariables, std::move(calls)));
    for (size_t i = 0; i < sent.size(); ++i) {
      TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<LoadResponse>(responses[i]));
      if (static_cast<size_t>(response.crcs_size()) != sent[i]->pieces.size()) {
        return make_status(ErrorCode::kInternal, "a server has not read all pieces");
      }
      for (int j = 0; j < response.crcs_size(); ++j) {
        pieces.push_back(sent[i]->pieces[j]);
        pieces.back().crc = response.crcs(j);
      }
      done += sent[i]->bytes;
    }
    if (progress) progress(done, total);
  }
  return check_pieces(manifest, std::move(pieces));
}

}  // namespace trireme::internal
