#pragma once

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace trireme {

// A file that a test gives to the code that it tests, and whose text it reads back: a terminal of
// some width, or a pipe.
class ReadBack {
 public:
  static constexpr int kPipe = 0;

  // Opens a terminal with this number of columns, or a pipe.
  explicit ReadBack(int columns) {
    int ends[2] = {-1, -1};
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    const int opened =
        columns == kPipe ? pipe(ends) : openpty(&ends[0], &ends[1], nullptr, nullptr, &size);
    EXPECT_EQ(opened, 0);
    input_ = ends[0];
    file_ = fdopen(ends[1], "w");
  }
  ~ReadBack() {
    std::fclose(file_);
    close(input_);
  }

  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  std::FILE* file() const { return file_; }

  // Returns the text that was written since the last call. The kernel passes on what a terminal
  // gets some time later, so a mark is written behind it, and read again.
  std::string text() {
    constexpr char kMark = '\x01';
    std::fputc(kMark, file_);
    std::fflush(file_);
    std::string text;
    for (char byte = 0; read(input_, &byte, 1) == 1 && byte != kMark;) text.push_back(byte);
    return text;
  }

 private:
  int input_ = -1;
  std::FILE* file_ = nullptr;
};

}  // namespace trireme
