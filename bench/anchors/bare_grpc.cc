#include "bench/anchors/bare_grpc.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

// The server has one completion queue per thread. Every call object is the tag of its own
// operations: it requests a call, puts a new object in its place when a call arrives, and deletes
// itself at the end. The client either makes blocking calls, as generated code does, or keeps many
// calls in flight on one queue, which one thread polls.

namespace trireme::bench {
namespace {

constexpr char kUnary[] = "/bare.Bare/Unary";
constexpr char kStream[] = "/bare.Bare/Stream";
constexpr size_t kSlice = 1 << 20;
constexpr int kAccepts = 64;  // Calls that each queue is ready to accept at a time.

// Tag of an operation on a completion queue.
struct Event {
  virtual ~Event() = default;
  virtual void on(bool ok) = 0;
};

void run(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Event*>(tag)->on(ok);
}

class RawService final : public grpc::Service {
 public:
  RawService() {
    using grpc::internal::RpcMethod;
    AddMethod(new grpc::internal::RpcServiceMethod(kUnary, RpcMethod::NORMAL_RPC, nullptr));
    AddMethod(new grpc::internal::RpcServiceMethod(kStream, RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodAsync(0);
    MarkMethodAsync(1);
  }
  using grpc::Service::RequestAsyncBidiStreaming;
  using grpc::Service::RequestAsyncUnary;
};

// Answers a unary call with its own request.
struct UnaryCall final : Event {
  RawService* service;
  grpc::ServerCompletionQueue* queue;
  grpc::ServerContext context;
  grpc::ByteBuffer request;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer{&context};
  bool answered = false;

  UnaryCall(RawService* service, grpc::ServerCompletionQueue* queue)
      : service(service), queue(queue) {
    service->RequestAsyncUnary(0, &context, &request, &writer, queue, queue, this);
  }
  void on(bool ok) override {
    if (!ok || answered) {
      delete this;
      return;
    }
    answered = true;
    new UnaryCall(service, queue);
    writer.Finish(request, grpc::Status::OK, this);
  }
};

// Answers each message on a stream with the whole data, one slice per write.
struct StreamCall final : Event {
  enum class State { kAccepting, kReading, kWriting, kFinishing };

  RawService* service;
  grpc::ServerCompletionQueue* queue;
  const uint8_t* data;
  size_t bytes;
  grpc::ServerContext context;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream{&context};
  grpc::ByteBuffer request;
  State state = State::kAccepting;
  size_t sent = 0;

  StreamCall(RawService* service, grpc::ServerCompletionQueue* queue, const uint8_t* data,
             size_t bytes)
      : service(service), queue(queue), data(data), bytes(bytes) {
    service->RequestAsyncBidiStreaming(1, &context, &stream, queue, queue, this);
  }
  void on(bool ok) override {
    switch (state) {
      case State::kAccepting:
        if (!ok) {
          delete this;
          return;
        }
        new StreamCall(service, queue, data, bytes);
        return read();
      case State::kReading:
        if (!ok) {
          state = State::kFinishing;
          return stream.Finish(grpc::Status::OK, this);
        }
        sent = 0;
        state = State::kWriting;
        return write();
      case State::kWriting:
        return ok && sent < bytes ? write() : read();
      case State::kFinishing:
        delete this;
    }
  }
  void read() {
    state = State::kReading;
    stream.Read(&request, this);
  }
  void write() {
    const size_t part = std::min(kSlice, bytes - sent);
    grpc::Slice slice(const_cast<uint8_t*>(data + sent), part, grpc::Slice::STATIC_SLICE);
    sent += part;
    stream.Write(grpc::ByteBuffer(&slice, 1), this);
  }
};

std::shared_ptr<grpc::ServerCredentials> server_credentials(const BareTls& tls) {
  if (tls.key.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.authority;
  options.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const BareTls& tls) {
  if (tls.key.empty()) return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  return grpc::CreateChannel(address,
                             grpc::SslCredentials({tls.authority, tls.key, tls.certificate}));
}

void fail(const char* what) {
  std::fprintf(stderr, "bare gRPC: %s failed\n", what);
  std::abort();
}

}  // namespace

class BareServer::Impl {
 public:
  Impl(int threads, const uint8_t* data, size_t bytes, const BareTls& tls) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", server_credentials(tls), &port);
    builder.RegisterService(&service_);
    for (int i = 0; i < threads; ++i) queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    if (!server_) fail("starting the server");
    address_ = "127.0.0.1:" + std::to_string(port);
    for (auto& queue : queues_) {
      for (int i = 0; i < kAccepts; ++i) new UnaryCall(&service_, queue.get());
      for (int i = 0; i < 4; ++i) new StreamCall(&service_, queue.get(), data, bytes);
      threads_.emplace_back([queue = queue.get()] { run(queue); });
    }
  }
  ~Impl() {
    server_->Shutdown(std::chrono::system_clock::now());
    for (auto& queue : queues_) queue->Shutdown();
    for (auto& thread : threads_) thread.join();
  }

  RawService service_;
  std::string address_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
};

BareServer::BareServer(int threads, const uint8_t* data, size_t bytes, const BareTls& tls)
    : impl_(std::make_unique<Impl>(threads, data, bytes, tls)) {}
BareServer::~BareServer() = default;
const std::string& BareServer::address() const {
  return impl_->address_;
}

class BareClient::Impl {
 public:
  Impl(const std::string& address, const BareTls& tls)
      : channel_(make_channel(address, tls)),
        stub_(channel_),
        method_(kUnary, grpc::internal::RpcMethod::NORMAL_RPC, channel_) {}

  ~Impl() {
    if (stream_) {
      stream_->WritesDone(nullptr);
      grpc::Status status;
      stream_->Finish(&status, nullptr);
      stream_context_->TryCancel();
    }
    for (grpc::CompletionQueue* queue : {&queue_, &stream_queue_}) {
      queue->Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) {
      }
    }
  }

  void call(const std::string& request) {
    grpc::Slice slice(request);
    grpc::ByteBuffer message(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall(channel_.get(), method_, &context, message, &response);
    if (!status.ok()) fail("a call");
  }

  void calls(const std::string& request, int count, int in_flight) {
    struct Call final : Event {
      grpc::ClientContext context;
      grpc::ByteBuffer response;
      grpc::Status status;
      std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
      Impl* self;
      void on(bool) override {
        if (!status.ok()) fail("a call in flight");
        --self->under_way_;
        delete this;
      }
    };
    int started = 0;
    while (started < count || under_way_ > 0) {
      while (started < count && under_way_ < in_flight) {
        auto* call = new Call;
        call->self = this;
        call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
        grpc::Slice slice(request);
        call->reader =
            stub_.PrepareUnaryCall(&call->context, kUnary, grpc::ByteBuffer(&slice, 1), &queue_);
        call->reader->StartCall();
        call->reader->Finish(&call->response, &call->status, call);
        ++started;
        ++under_way_;
      }
      void* tag = nullptr;
      bool ok = false;
      queue_.Next(&tag, &ok);
      static_cast<Event*>(tag)->on(ok);
    }
  }

  void fetch(uint8_t* buffer, size_t bytes) {
    if (!stream_) {
      stream_context_ = std::make_unique<grpc::ClientContext>();
      stream_ = stub_.PrepareCall(stream_context_.get(), kStream, &stream_queue_);
      stream_->StartCall(nullptr);
      wait();
    }
    grpc::Slice slice(std::string(64, 'x'));
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    wait();
    size_t received = 0;
    grpc::ByteBuffer message;
    std::vector<grpc::Slice> slices;
    while (received < bytes) {
      stream_->Read(&message, nullptr);
      wait();
      slices.clear();
      if (!message.Dump(&slices).ok()) fail("a dump");
      for (const grpc::Slice& part : slices) {
        std::memcpy(buffer + received, part.begin(), part.size());
        received += part.size();
      }
    }
  }

 private:
  void wait() {
    void* tag = nullptr;
    bool ok = false;
    if (!stream_queue_.Next(&tag, &ok) || !ok) fail("the stream");
  }

  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::internal::RpcMethod method_;
  grpc::CompletionQueue queue_;
  grpc::CompletionQueue stream_queue_;
  std::unique_ptr<grpc::ClientContext> stream_context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  int under_way_ = 0;
};

BareClient::BareClient(const std::string& address, const BareTls& tls)
    : impl_(std::make_unique<Impl>(address, tls)) {}
BareClient::~BareClient() = default;
void BareClient::call(const std::string& request) {
  impl_->call(request);
}
void BareClient::calls(const std::string& request, int count, int in_flight) {
  impl_->calls(request, count, in_flight);
}
void BareClient::fetch(uint8_t* buffer, size_t bytes) {
  impl_->fetch(buffer, bytes);
}

}  // namespace trireme::bench
