// A full server answers every request over a real connection, and continues to answer. The first
// byte chooses one of all methods, and whether the rest is the body of a message or a raw message.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <string>
#include <vector>

#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/server/services.h"

namespace {

using namespace trireme;

struct Fixture {
  Fixture() {
    set_log_level(LogLevel::kOff);
    internal::prepare_grpc();
    server = value_or_throw(TaskServer::start({.spec = ClusterSpec{{"ps", {port.address()}}},
                                               .task = {"ps", 0},
                                               .services = all_services()}));
    for (const auto& [method, roles] : server->rpc().method_table()) methods.push_back(method);
  }

  PortReservation port = value_or_throw(PortReservation::make());
  std::unique_ptr<TaskServer> server;
  std::vector<std::string> methods;
  grpc::GenericStub stub{grpc::CreateChannel(port.address(), grpc::InsecureChannelCredentials())};
  grpc::CompletionQueue queue;
  uint64_t request_id = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* fixture = new Fixture();
  if (size == 0) return 0;
  const std::string method = fixture->methods[(data[0] >> 1) % fixture->methods.size()];
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] & 1) {
    auto writer =
        value_or_throw(MessageWriter::make({.request_id = ++fixture->request_id,
                                            .sender = 1,
                                            .receiver = fixture->server->context().incarnation},
                                           {std::move(bytes), {}}));
    bytes = writer.next_frame(writer.bytes_left()).at(0).bytes;
  }
  const grpc::Slice slice(bytes);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::ByteBuffer response;
  grpc::Status status;
  auto call = fixture->stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1),
                                             &fixture->queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  fixture->queue.Next(&tag, &ok);
  // From gRPC, and not from the server, these codes mean that the server no longer answers. The
  // server itself answers UNAVAILABLE to the handle of memory of another machine, for example.
  if (!internal::made_by_peer(status) &&
      (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
       status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)) {
    __builtin_trap();
  }
  return 0;
}
