#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/files.h"

namespace trireme {
namespace proto {
class Event;
}

// A bucket of a histogram: the number of values from `left` to `right`.
struct HistogramBucket {
  double left = 0, right = 0, count = 0;

  bool operator==(const HistogramBucket&) const = default;
};

// Options of EventFile::create().
struct EventFileOptions {
  // Text in the first record, by which rewind_event_files() recognizes the files of one writer.
  std::string writer = "trireme";
  // File system of the file. Must outlive it.
  Files* files = &Files::local();
};

// Writes one of TensorBoard's event files. Each folder is a run, and a run may have several files:
// every process makes a new one.
//
// Events are collected in memory until flush(), which writes them with one call, so that a reader
// never sees a part of a record that is not completed soon. Not thread-safe. The destructor
// does not flush.
class EventFile {
 public:
  // Creates a file, and its folder if it is missing. Writes the first record.
  static absl::StatusOr<std::unique_ptr<EventFile>> create(const std::string& folder,
                                                           EventFileOptions options = {});
  ~EventFile();

  // Add an event with the current time: a number, which TensorBoard keeps as float32; a histogram,
  // whose buckets follow each other; a text in Markdown.
  void add_scalar(const std::string& tag, int64_t step, double value);
  void add_histogram(const std::string& tag, int64_t step,
                     const std::vector<HistogramBucket>& buckets);
  void add_text(const std::string& tag, int64_t step, const std::string& text);

  // Writes the events so far. After an error, which names the file, the next flush() writes the
  // same events at the same place again. RESOURCE_EXHAUSTED means a full disk.
  absl::Status flush();

  // Returns the name of the file in its folder.
  const std::string& name() const { return name_; }
  // Returns the number of bytes that flush() has written.
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  EventFile(std::string name, std::unique_ptr<OutputFile> file);
  void add(proto::Event& event);

  const std::string name_;
  const std::unique_ptr<OutputFile> file_;
  std::string unwritten_;  // Records since the last flush.
  uint64_t bytes_written_ = 0;
};

// Removes the events that a writer has added to a run since the lengths of its files were `bytes`
// (by their names): cuts these files off there, and removes the writer's other files. Files of
// other writers and files that are missing do not matter. No EventFile may write to these files
// afterwards.
absl::Status rewind_event_files(const std::string& folder, const std::string& writer,
                                const std::map<std::string, uint64_t>& bytes);

}  // namespace trireme
