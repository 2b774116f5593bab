#include "trireme/ps/server_save.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/executor.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/ps/checkpoint_folder.h"

// A save runs on one thread, and on a second one while it writes, so that one of them copies and
// computes checksums while the disk works for the other. In mode copy, the first thread copies all
// variables, each under its lock, into memory that has the layout of the file, answers the call
// that began the save, and writes the copy. In mode stream it sets the capture as the watcher of
// each variable instead.
//
// The result is decided once: by the thread when it is done, by abort(), or by tick() if the disk
// hangs. The threads look at it before each block. Only they use the file, so the file of an
// aborted save is removed by its thread; a finished one by abort().
namespace trireme::internal {
namespace {

constexpr uint64_t kWriteBytes = StreamCapture::kRunBlocks * SavedImage::kBlockBytes;
constexpr int kWriters = 2;
// Priorities of the threads that write. Nobody waits for a copy to be written, so it takes what
// training leaves. Updates may wait for a stream, so its threads must not wait long for them.
constexpr int kCopyNiceness = 19;
constexpr int kStreamNiceness = 10;
// How much longer than between two Waits a client may take to the first one.
constexpr int kPatienceBeforeWait = 3;
// Variables of this size are copied by two threads.
constexpr uint64_t kLargeVariable = 8 << 20;

uint64_t microseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

ServerSave::ServerSave(ServerSaveOptions options, std::shared_ptr<const SavedImage> image,
                       VariableStore& store, Files& files)
    : options_(std::move(options)),
      image_(std::move(image)),
      store_(store),
      files_(files),
      steps_(image_->variables().size()),
      capture_(options_.stream ? std::make_shared<StreamCapture>(image_, options_.stuck_after)
                               : nullptr),
      written_at_(Clock::real().now()),
      asked_at_(Clock::real().now()) {}

ServerSave::~ServerSave() {
  decide(make_status(ErrorCode::kAborted, "the server ends"));
  if (thread_.joinable()) thread_.join();
}

void ServerSave::start(ServerCall call, std::shared_ptr<ServerSave> earlier) {
  thread_ = std::thread([this, call = std::move(call), earlier = std::move(earlier)]() mutable {
    set_thread_name("trireme-save");
    run(std::move(call), earlier);
    earlier.reset();
    over_ = true;
    MutexLock lock(mutex_);
    ended_.notify_all();
  });
}

void ServerSave::run(ServerCall call, const std::shared_ptr<ServerSave>& earlier) {
  absl::Status status = earlier == nullptr ? absl::OkStatus() : wait_for(*earlier);
  const Time begin = Clock::real().now();
  if (status.ok()) {
    status = try_call([&] { throw_if_error(fix()); });
  }
  if (!status.ok()) {
    clean_up(/*failed=*/true);
    decide(status);
    return call.respond(disk_error(status));
  }
  BeginSaveResponse response;
  response.set_bytes(image_->layout().bytes());
  response.set_copy_us(microseconds(Clock::real().now() - begin));
  {
    MutexLock lock(mutex_);
    begun_ = true;
    asked_at_ = written_at_ = Clock::real().now();
  }
  call.respond(make_message(response));

  lower_thread_priority(capture_ == nullptr ? kCopyNiceness : kStreamNiceness);
  status = try_call([&] { throw_if_error(write()); });
  const SavedFile file = image_->layout().file(options_.file);
  {
    MutexLock lock(mutex_);
    if (decided_) {
      status = status_;
    } else if (status.ok()) {
      finished_.set_file(file.name);
      finished_.set_header_bytes(file.header_bytes);
      finished_.set_header_crc(file.header_crc);
      image_->describe(capture_ ? capture_->crcs() : crcs_, steps_, finished_);
      written_ = file.bytes;
    }
  }
  clean_up(!status.ok());
  // If abort() came in the meantime, it has left the file to this thread.
  if (!decide(status) && status.ok()) remove_file();
}

absl::Status ServerSave::wait_for(ServerSave& earlier) {
  const Time limit = after(options_.stuck_after);
  while (!earlier.over()) {
    TRIREME_RETURN_IF_ERROR(stopped());
    if (Clock::real().now() >= limit) {
      return make_status(ErrorCode::kAborted,
                         "the save before this one has not ended yet; its disk does not answer");
    }
    MutexLock lock(earlier.mutex_);
    if (!earlier.over()) {
      earlier.ended_.wait_until(earlier.mutex_, after(std::chrono::milliseconds(100)));
    }
  }
  return absl::OkStatus();
}

absl::Status ServerSave::fix() {
  const std::string path = join_path(options_.folder, options_.file);
  TRIREME_ASSIGN_OR_RETURN(file_, files_.create(path));
  created_ = true;
  if (capture_ == nullptr) return copy_variables();
  for (size_t i = 0; i < image_->variables().size(); ++i) {
    StoredVariable& variable = *image_->variables()[i];
    steps_[i] = variable.watch(capture_, [&] { image_->fetch(variable); });
  }
  return stopped();
}

absl::Status ServerSave::copy_variables() {
  const uint64_t bytes = whole_direct_blocks(image_->data_bytes());
  TRIREME_RETURN_IF_ERROR(store_.reserve_copy(bytes + image_->fetched_bytes()));
  reserved_ = bytes + image_->fetched_bytes();
  absl::StatusOr<AlignedBuffer> memory = AlignedBuffer::make(std::max<uint64_t>(bytes, 1));
  if (!memory.ok()) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("there is no memory for a copy of the variables, ", bytes,
                                    " bytes; save with the mode stream, which needs no copy"));
  }
  copy_ = *std::move(memory);
  crcs_.resize(image_->segments().size());
  for (size_t i = 0; i < image_->variables().size(); ++i) {
    TRIREME_RETURN_IF_ERROR(stopped());
    StoredVariable& variable = *image_->variables()[i];
    std::vector<size_t> segments;
    for (const SavedImage::Place& place : image_->places(variable)) {
      for (size_t j = 0; j < place.segments; ++j) segments.push_back(place.first_segment + j);
    }
    steps_[i] = variable.read_state([&] {
      image_->fetch(variable);
      copy_segments(segments);
    });
    note_written(0);
  }
  return absl::OkStatus();
}

void ServerSave::copy_segments(const std::vector<size_t>& segments) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < segments.size(); i = next++) {
      const SavedImage::Segment& segment = image_->segments()[segments[i]];
      crcs_[segments[i]] =
          copy_with_crc(copy_.data() + segment.offset, segment.data, segment.bytes);
    }
  };
  if (segments.size() < kLargeVariable / SavedImage::kBlockBytes) return work();
  std::thread helper(work);
  work();
  helper.join();
}

absl::Status ServerSave::write() {
  const std::string& header = image_->layout().header();
  TRIREME_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::make(header.size()));
  std::memcpy(buffer.data(), header.data(), header.size());
  TRIREME_RETURN_IF_ERROR(file_->write(0, buffer.data(), header.size()));
  buffer.release();
  absl::Status of_helper;
  std::thread helper([&] {
    set_thread_name("trireme-save");
    lower_thread_priority(capture_ == nullptr ? kCopyNiceness : kStreamNiceness);
    of_helper = write_blocks();
  });
  absl::Status status = write_blocks();
  helper.join();
  status.Update(of_helper);
  TRIREME_RETURN_IF_ERROR(status);
  TRIREME_RETURN_IF_ERROR(stopped());
  TRIREME_RETURN_IF_ERROR(file_->finish(image_->layout().bytes()));
  return files_.sync_directory(options_.folder);
}

absl::Status ServerSave::write_blocks() {
  const absl::Status status = try_call([&] {
    throw_if_error(capture_ == nullptr ? write_copied_blocks() : write_streamed_blocks());
  });
  // Changes must not wait for a file that cannot be written, and the other thread stops too.
  if (!status.ok()) decide(status);
  return status;
}

absl::Status ServerSave::write_copied_blocks() {
  const uint64_t header = image_->layout().header().size();
  const uint64_t end = image_->data_bytes();
  for (uint64_t at = next_.fetch_add(kWriteBytes); at < end; at = next_.fetch_add(kWriteBytes)) {
    TRIREME_RETURN_IF_ERROR(stopped());
    const uint64_t bytes = std::min(kWriteBytes, end - at);
    TRIREME_RETURN_IF_ERROR(
        file_->write(header + at, copy_.data() + at, whole_direct_blocks(bytes)));
    note_written(bytes);
  }
  return absl::OkStatus();
}

absl::Status ServerSave::write_streamed_blocks() {
  const uint64_t header = image_->layout().header().size();
  TRIREME_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::make(kWriteBytes));
  while (const auto run = capture_->claim()) {
    if (!capture_->copy(*run, buffer.data())) break;
    const uint64_t at = run->first * SavedImage::kBlockBytes;
    const uint64_t bytes =
        std::min(run->count * SavedImage::kBlockBytes, image_->data_bytes() - at);
    // The last page may have bytes of an earlier block behind the end of the data.
    std::memset(buffer.data() + bytes, 0, whole_direct_blocks(bytes) - bytes);
    TRIREME_RETURN_IF_ERROR(file_->write(header + at, buffer.data(), whole_direct_blocks(bytes)));
    capture_->note_written();
    note_written(bytes);
  }
  return capture_->stuck() ? disk_hangs() : stopped();
}

void ServerSave::note_written(uint64_t bytes) {
  MutexLock lock(mutex_);
  written_ += bytes;
  written_at_ = Clock::real().now();
}

void ServerSave::clean_up(bool failed) {
  if (capture_ != nullptr) {
    capture_->end();
    for (const auto& variable : image_->variables()) variable->unwatch(capture_.get());
  }
  copy_.release();
  store_.release_copy(std::exchange(reserved_, 0));
  file_.reset();
  if (failed && created_) remove_file();
}

void ServerSave::remove_file() {
  const absl::Status removed = files_.remove(join_path(options_.folder, options_.file));
  if (removed.ok()) return;
  log_warning("the file of a save that was given up remains: ", describe(removed));
}

bool ServerSave::decide(const absl::Status& status) {
  std::vector<std::pair<ServerCall, absl::StatusOr<Message>>> answers;
  {
    MutexLock lock(mutex_);
    if (decided_) return false;
    decided_ = true;
    status_ = disk_error(status);
    for (ServerCall& call : waiting_) answers.emplace_back(std::move(call), answer());
    told_ = status_.ok() && !waiting_.empty();
    waiting_.clear();
  }
  // Not under the lock: end() waits for threads that copy.
  if (capture_ != nullptr) capture_->end();
  for (auto& [call, answer] : answers) call.respond(std::move(answer));
  return true;
}

absl::Status ServerSave::disk_hangs() const {
  return make_status(ErrorCode::kAborted,
                     absl::StrCat("the disk has written nothing for ",
                                  format_duration(options_.stuck_after), "; the save was given up"),
                     {"", absl::StrCat("file '", options_.file, "'")});
}

absl::Status ServerSave::stopped() const {
  MutexLock lock(mutex_);
  return decided_ ? status_ : absl::OkStatus();
}

bool ServerSave::running() const {
  MutexLock lock(mutex_);
  return !decided_;
}

void ServerSave::wait(ServerCall call) {
  absl::StatusOr<Message> answered;
  {
    MutexLock lock(mutex_);
    waited_ = true;
    asked_at_ = Clock::real().now();
    if (!decided_) {
      waiting_.push_back(std::move(call));
      return;
    }
    told_ = told_ || status_.ok();
    answered = answer();
  }
  call.respond(std::move(answered));
}

void ServerSave::abort(absl::Status why) {
  const MutexLock no_leave(leave_mutex_);
  bool finished = false;
  {
    MutexLock lock(mutex_);
    finished = decided_ && status_.ok();
    if (finished) status_ = why;  // a Wait that comes later fails
  }
  if (!finished) {
    decide(why);
  } else if (!left_) {
    remove_file();
  }
}

void ServerSave::leave_file() {
  const MutexLock no_abort(leave_mutex_);
  left_ = true;
}

ServerSave::Next ServerSave::tick() {
  const Time now = Clock::real().now();
  std::vector<std::pair<ServerCall, absl::StatusOr<Message>>> answers;
  bool stuck = false;
  Next next = Next::kKeep;
  {
    MutexLock lock(mutex_);
    if (!waiting_.empty()) asked_at_ = now;
    for (ServerCall& call : waiting_) answers.emplace_back(std::move(call), answer());
    waiting_.clear();
    stuck = begun_ && !decided_ && now >= written_at_ + options_.stuck_after;
    const Duration patience = options_.unasked_after * (waited_ ? 1 : kPatienceBeforeWait);
    if ((begun_ || decided_) && now >= asked_at_ + patience) {
      const bool unknown = !decided_ || (status_.ok() && !told_);
      next = unknown ? Next::kAbort : over_ ? Next::kForget : Next::kKeep;
    }
  }
  for (auto& [call, answer] : answers) call.respond(std::move(answer));
  if (stuck || (capture_ != nullptr && capture_->stuck())) decide(disk_hangs());
  return next;
}

absl::StatusOr<Message> ServerSave::answer() const {
  if (decided_ && !status_.ok()) return status_;
  WaitSaveResponse response;
  if (decided_) response = finished_;
  response.set_done(decided_);
  response.set_written(written_);
  response.set_bytes(image_->layout().bytes());
  if (capture_ != nullptr) {
    const StreamCapture::Stats stats = capture_->stats();
    response.set_pool_wait_us(microseconds(stats.waited));
    response.set_longest_wait_us(microseconds(stats.longest_wait));
    response.set_extra_bytes(stats.pool_peak + kWriters * kWriteBytes + image_->fetched_bytes());
  } else {
    response.set_extra_bytes(whole_direct_blocks(image_->data_bytes()) + image_->fetched_bytes());
  }
  return make_message(response);
}

}  // namespace trireme::internal
