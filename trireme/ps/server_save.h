#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/aligned_buffer.h"
#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/saved_image.h"
#include "trireme/ps/saves.pb.h"
#include "trireme/ps/stream_capture.h"
#include "trireme/ps/variable_store.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

struct ServerSaveOptions {
  std::string id;
  VariableScope scope;
  std::string folder;  // folder of the file, as resolve_folder() returns it
  std::string file;    // name of the file
  bool stream = false;
  // Time without progress after which the save fails, and time without a Wait after which it is
  // given up. Both count from the answer to Begin. Until the first Wait, for which a client has to
  // have the answers of all servers, the second is three times as long.
  Duration stuck_after = std::chrono::seconds(60);
  Duration unasked_after = std::chrono::seconds(60);
};

// Writes the variables of one server to a file, on threads of its own. Thread-safe. The store and
// the files must outlive it.
class ServerSave {
 public:
  ServerSave(ServerSaveOptions options, std::shared_ptr<const SavedImage> image,
             VariableStore& store, Files& files);
  // Aborts the save and waits for its threads.
  ~ServerSave();

  // Begins to save, and answers `call` when the contents of the file are decided. Waits for the end
  // of `earlier` first, which may be null: a save of the same variables that was aborted.
  void start(ServerCall call, std::shared_ptr<ServerSave> earlier);
  // Answers `call` when the save has ended, or with the progress at the next tick().
  void wait(ServerCall call);
  // Ends the save and removes the file, also if it is finished.
  void abort(absl::Status why);
  // Makes a later abort() leave a finished file alone: another save may write one with the same
  // path. May wait for an abort() that is under way.
  void leave_file();
  enum class Next {
    kKeep,
    kAbort,   // the client has not asked for too long; call abort()
    kForget,  // the save has ended, and the client has not asked for long
  };
  // Called several times a second. Answers the calls that wait, ends a save whose disk hangs, and
  // returns what is to be done with the save. Does not block.
  Next tick();

  const ServerSaveOptions& options() const { return options_; }
  // Returns true if it was not decided yet how the save ends.
  bool running() const;
  // Returns true if its threads have ended, so that it can be destroyed at once.
  bool over() const { return over_; }

 private:
  void run(ServerCall call, const std::shared_ptr<ServerSave>& earlier);
  // Waits until the threads of another save have ended.
  absl::Status wait_for(ServerSave& earlier);
  // Decides the contents: copies them, or begins to capture changes.
  absl::Status fix();
  absl::Status copy_variables();
  // Copies the segments of one variable with this thread, and with a second one if there are many.
  void copy_segments(const std::vector<size_t>& segments);
  // Writes the file. Each of two threads runs write_blocks().
  absl::Status write();
  absl::Status write_blocks();
  absl::Status write_copied_blocks();
  absl::Status write_streamed_blocks();
  void note_written(uint64_t bytes);
  // Frees what the save has used, and removes the file if it has failed.
  void clean_up(bool failed);
  void remove_file();
  // Sets the result and answers the calls that wait. Returns false if the result was set before.
  bool decide(const absl::Status& status);
  absl::Status disk_hangs() const;
  // Returns the error that ends the save; OK if it goes on.
  absl::Status stopped() const;
  absl::StatusOr<Message> answer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServerSaveOptions options_;
  const std::shared_ptr<const SavedImage> image_;
  VariableStore& store_;
  Files& files_;
  // Used by the threads of the save only.
  std::unique_ptr<OutputFile> file_;
  bool created_ = false;            // true once the file exists
  AlignedBuffer copy_;              // contents of the file behind the header; mode copy
  uint64_t reserved_ = 0;           // bytes reserved for it
  std::vector<uint32_t> crcs_;      // checksums of the segments; mode copy
  std::vector<double> steps_;       // updates of each variable's optimizer
  std::atomic<uint64_t> next_ = 0;  // next byte that is not claimed by a thread; mode copy

  const std::shared_ptr<StreamCapture> capture_;  // null in mode copy
  Mutex leave_mutex_;  // held while abort() removes a finished file; taken before mutex_
  bool left_ ABSL_GUARDED_BY(leave_mutex_) = false;  // true after leave_file()
  std::atomic<bool> over_ = false;
  mutable Mutex mutex_;
  CondVar ended_;
  bool decided_ ABSL_GUARDED_BY(mutex_) = false;  // true once the result is known
  absl::Status status_ ABSL_GUARDED_BY(mutex_);   // result
  bool told_ ABSL_GUARDED_BY(mutex_) = false;     // true once the client knows of the finished file
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;    // true once Begin is answered
  bool waited_ ABSL_GUARDED_BY(mutex_) = false;   // true once a Wait has come
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  Time written_at_ ABSL_GUARDED_BY(mutex_);  // time of the last progress
  Time asked_at_ ABSL_GUARDED_BY(mutex_);    // time of the client's last call
  WaitSaveResponse finished_ ABSL_GUARDED_BY(mutex_);
  std::vector<ServerCall> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace trireme::internal
