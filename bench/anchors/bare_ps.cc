#include "bench/anchors/bare_ps.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

// A client keeps one stream to its server. A pull is a message that begins with kPull; the server
// answers with slices of the whole array. A push is a message that begins with kPush, followed by
// slices of the whole delta; the server answers with a message when it has added the delta.

namespace trireme::bench {
namespace {

constexpr char kStream[] = "/bare.Ps/Stream";
constexpr size_t kSlice = 1 << 20;
constexpr char kPull = 'l', kPush = 's';

void fail(const char* what) {
  std::fprintf(stderr, "bare ps: %s failed\n", what);
  std::abort();
}

// An array in memory like that of Trireme's pool: already mapped, on huge pages if there are any.
class Array {
 public:
  explicit Array(size_t floats) : bytes_(floats * sizeof(float)) {
    constexpr size_t kHuge = 2 << 20;
    const size_t size = (bytes_ + kHuge - 1) / kHuge * kHuge;
    data_ = static_cast<float*>(std::aligned_alloc(kHuge, size));
    madvise(data_, size, MADV_HUGEPAGE);
    std::memset(data_, 0, size);
  }
  ~Array() { std::free(data_); }
  Array(const Array&) = delete;

  float* data() { return data_; }
  uint8_t* raw() { return reinterpret_cast<uint8_t*>(data_); }
  size_t bytes() const { return bytes_; }
  size_t floats() const { return bytes_ / sizeof(float); }

 private:
  size_t bytes_;
  float* data_;
};

grpc::ByteBuffer refer(const uint8_t* data, size_t size) {
  grpc::Slice slice(const_cast<uint8_t*>(data), size, grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer word(char letter) {
  grpc::Slice slice(std::string(64, letter));
  return grpc::ByteBuffer(&slice, 1);
}

// Copies a message to `out` and returns its size.
size_t copy_to(uint8_t* out, grpc::ByteBuffer& message, std::vector<grpc::Slice>& slices) {
  slices.clear();
  if (!message.Dump(&slices).ok()) fail("a dump");
  size_t size = 0;
  for (const grpc::Slice& slice : slices) {
    std::memcpy(out + size, slice.begin(), slice.size());
    size += slice.size();
  }
  return size;
}

struct Resident {
  explicit Resident(size_t floats) : array(floats) {}
  std::mutex mutex;
  Array array;
};

// A stream on the server. It has one operation pending at a time. During a push, the next slice is
// requested before the last one is copied, so that receiving and copying overlap.
struct StreamCall {
  enum class State { kAccepting, kIdle, kReceiving, kSending, kAnswering, kFinishing };

  grpc::AsyncGenericService* service;
  grpc::ServerCompletionQueue* queue;
  Resident* resident;
  Array buffer;
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
  grpc::ByteBuffer message;
  std::vector<grpc::Slice> slices;
  State state = State::kAccepting;
  size_t done = 0;

  StreamCall(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue,
             Resident* resident)
      : service(service), queue(queue), resident(resident), buffer(resident->array.floats()) {
    service->RequestCall(&context, &stream, queue, queue, this);
  }

  void on(bool ok) {
    if (state == State::kFinishing || (state == State::kAccepting && !ok)) {
      delete this;
      return;
    }
    if (!ok) {
      state = State::kFinishing;
      return stream.Finish(grpc::Status::OK, this);
    }
    switch (state) {
      case State::kAccepting:
        new StreamCall(service, queue, resident);
        return idle();
      case State::kIdle: {
        char first = 0;
        slices.clear();
        if (!message.Dump(&slices).ok()) fail("a dump");
        first = static_cast<char>(slices[0].begin()[0]);
        done = 0;
        return first == kPull ? begin_sending() : receive();
      }
      case State::kReceiving:
        return received();
      case State::kSending:
        return done < buffer.bytes() ? send() : idle();
      case State::kAnswering:
        return idle();
      default:
        fail("the stream");
    }
  }

  void idle() {
    state = State::kIdle;
    stream.Read(&message, this);
  }
  void begin_sending() {
    {
      std::lock_guard<std::mutex> lock(resident->mutex);
      std::memcpy(buffer.raw(), resident->array.raw(), buffer.bytes());
    }
    state = State::kSending;
    send();
  }
  void send() {
    const size_t part = std::min(kSlice, buffer.bytes() - done);
    const grpc::ByteBuffer slice = refer(buffer.raw() + done, part);
    done += part;
    stream.Write(slice, this);
  }
  void receive() {
    state = State::kReceiving;
    stream.Read(&message, this);
  }
  void received() {
    grpc::ByteBuffer part;
    part.Swap(&message);
    const size_t offset = done;
    done += part.Length();
    if (done < buffer.bytes()) stream.Read(&message, this);
    copy_to(buffer.raw() + offset, part, slices);
    if (done < buffer.bytes()) return;
    {
      std::lock_guard<std::mutex> lock(resident->mutex);
      float* __restrict target = resident->array.data();
      const float* __restrict delta = buffer.data();
      for (size_t i = 0; i < buffer.floats(); ++i) target[i] += delta[i];
    }
    state = State::kAnswering;
    stream.Write(word('k'), this);
  }
};

}  // namespace

class BarePsServer::Impl {
 public:
  Impl(int threads, size_t floats) : resident_(floats) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service_);
    for (int i = 0; i < threads; ++i) queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    if (!server_) fail("starting the server");
    address_ = "127.0.0.1:" + std::to_string(port);
    for (auto& queue : queues_) {
      new StreamCall(&service_, queue.get(), &resident_);
      threads_.emplace_back([queue = queue.get()] {
        void* tag = nullptr;
        bool ok = false;
        while (queue->Next(&tag, &ok)) static_cast<StreamCall*>(tag)->on(ok);
      });
    }
  }
  ~Impl() {
    server_->Shutdown(std::chrono::system_clock::now());
    for (auto& queue : queues_) queue->Shutdown();
    for (auto& thread : threads_) thread.join();
  }

  Resident resident_;
  grpc::AsyncGenericService service_;
  std::string address_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
};

BarePsServer::BarePsServer(int threads, size_t floats)
    : impl_(std::make_unique<Impl>(threads, floats)) {}
BarePsServer::~BarePsServer() = default;
const std::string& BarePsServer::address() const {
  return impl_->address_;
}

class BarePsClient::Impl {
 public:
  Impl(const std::string& address, size_t floats)
      : bytes_(floats * sizeof(float)),
        stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    stream_ = stub_.PrepareCall(&context_, kStream, &queue_);
    stream_->StartCall(this);
    wait();
  }
  ~Impl() {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, this);
    wait();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  void pull(uint8_t* into) {
    stream_->Write(word(kPull), this);
    wait();
    grpc::ByteBuffer next, message;
    stream_->Read(&next, this);
    for (size_t done = 0; done < bytes_;) {
      wait();
      message.Swap(&next);
      const size_t offset = done;
      done += message.Length();
      if (done < bytes_) stream_->Read(&next, this);
      copy_to(into + offset, message, slices_);
    }
  }

  void push(const uint8_t* delta) {
    stream_->Write(word(kPush), this);
    wait();
    for (size_t done = 0; done < bytes_;) {
      const size_t part = std::min(kSlice, bytes_ - done);
      stream_->Write(refer(delta + done, part), this);
      wait();
      done += part;
    }
    grpc::ByteBuffer answer;
    stream_->Read(&answer, this);
    wait();
  }

 private:
  void wait() {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok)) fail("the stream");
  }

  const size_t bytes_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::vector<grpc::Slice> slices_;
};

BarePsClient::BarePsClient(const std::string& address, size_t floats)
    : impl_(std::make_unique<Impl>(address, floats)) {}
BarePsClient::~BarePsClient() = default;
void BarePsClient::pull(float* into) {
  impl_->pull(reinterpret_cast<uint8_t*>(into));
}
void BarePsClient::push(const float* delta) {
  impl_->push(reinterpret_cast<const uint8_t*>(delta));
}

}  // namespace trireme::bench
