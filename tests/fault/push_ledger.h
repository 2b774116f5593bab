#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "trireme/ps/layout.h"

// The variable and the ledger files that push_test shares with its workers.
namespace trireme {

inline constexpr int64_t kElements = 1024;

// Returns the element to which an update adds one.
inline int64_t element_of(uint64_t sequence) {
  return sequence * 2654435761u % kElements;
}

inline VariableLayout counts_layout(int servers) {
  return ShardPlacer(servers, Placement::kRoundRobin, FixedPartitioner(servers))
      .place({{"counts", {kElements}, c10::kLong}})[0];
}

// Appends sequence numbers to two files. Each number is written before the call returns, so that
// nothing is lost when the process is killed. Thread-safe.
class LedgerWriter {
 public:
  explicit LedgerWriter(const std::string& path)
      : sent_(open_file(path + ".sent")), acknowledged_(open_file(path + ".acknowledged")) {}
  ~LedgerWriter() {
    close(sent_);
    close(acknowledged_);
  }
  void sent(uint64_t sequence) const { append(sent_, sequence); }
  void acknowledged(uint64_t sequence) const { append(acknowledged_, sequence); }

 private:
  static int open_file(const std::string& path) {
    return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }
  static void append(int file, uint64_t sequence) {
    if (write(file, &sequence, sizeof(sequence)) != sizeof(sequence)) std::abort();
  }

  const int sent_, acknowledged_;
};

inline std::vector<uint64_t> read_ledger(const std::string& path) {
  std::vector<uint64_t> sequences;
  std::ifstream file(path, std::ios::binary);
  for (uint64_t sequence; file.read(reinterpret_cast<char*>(&sequence), sizeof(sequence));) {
    sequences.push_back(sequence);
  }
  return sequences;
}

inline uint64_t ledger_length(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? info.st_size / sizeof(uint64_t) : 0;
}

}  // namespace trireme
