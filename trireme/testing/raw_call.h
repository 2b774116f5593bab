#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <memory>
#include <string>

namespace trireme {

// Sends arbitrary bytes, such as a Channel would never send, as one unary call and waits for the
// answer.
inline grpc::Status call_raw(const std::string& address,
                             std::shared_ptr<grpc::ChannelCredentials> credentials,
                             const std::string& method, const grpc::ByteBuffer& request,
                             grpc::ByteBuffer* response) {
  grpc::GenericStub stub(grpc::CreateChannel(address, std::move(credentials)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(response, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

inline grpc::Status call_raw(const std::string& address, const std::string& method,
                             const std::string& bytes) {
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer response;
  return call_raw(address, grpc::InsecureChannelCredentials(), method, grpc::ByteBuffer(&slice, 1),
                  &response);
}

}  // namespace trireme
