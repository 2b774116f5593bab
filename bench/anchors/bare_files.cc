// Writes and reads files as fast as the disk allows, for bench/compare: one thread per file, 4 MiB
// per call, past the page cache.
//
//   bare_files DIRECTORY FILES BYTES
//
// The files have BYTES bytes each, a multiple of 4 MiB. Executes each line of its input and answers
// with the line "done":
//
//   write    writes new files and syncs them
//   read     reads the files
//   remove   removes the files
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBlock = 4 << 20;

void check(bool ok, const std::string& what) {
  if (ok) return;
  std::perror(("bare_files: " + what).c_str());
  std::exit(1);
}

// Memory of one block, filled with numbers that no disk can compress.
char* make_block(uint64_t seed) {
  void* memory = mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap");
  auto* words = static_cast<uint64_t*>(memory);
  for (size_t i = 0; i < kBlock / sizeof(uint64_t); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    words[i] = seed;
  }
  return static_cast<char*>(memory);
}

void write_file(const std::string& path, int64_t bytes, const char* block) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0644);
  check(file >= 0, path);
  for (int64_t offset = 0; offset < bytes; offset += kBlock) {
    check(pwrite(file, block, kBlock, offset) == ssize_t{kBlock}, "write " + path);
  }
  check(fsync(file) == 0, "fsync " + path);
  check(close(file) == 0, "close " + path);
}

void read_file(const std::string& path, int64_t bytes, char* block) {
  const int file = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  check(file >= 0, path);
  for (int64_t offset = 0; offset < bytes; offset += kBlock) {
    check(pread(file, block, kBlock, offset) == ssize_t{kBlock}, "read " + path);
  }
  check(close(file) == 0, "close " + path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bare_files DIRECTORY FILES BYTES\n");
    return 2;
  }
  const int64_t bytes = std::atoll(argv[3]);
  std::vector<std::string> paths;
  std::vector<char*> blocks;
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    paths.push_back(std::string(argv[1]) + "/bare-" + std::to_string(i));
    blocks.push_back(make_block(i + 1));
  }
  const auto for_each_file = [&](const std::function<void(size_t)>& work) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < paths.size(); ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
  };
  std::puts("ready");
  std::fflush(stdout);
  for (std::string what; std::getline(std::cin, what);) {
    if (what == "write") {
      for_each_file([&](size_t i) { write_file(paths[i], bytes, blocks[i]); });
    } else if (what == "read") {
      for_each_file([&](size_t i) { read_file(paths[i], bytes, blocks[i]); });
    } else if (what == "remove") {
      for (const std::string& path : paths) check(unlink(path.c_str()) == 0, "remove " + path);
    } else {
      std::fprintf(stderr, "bare_files: there is no command '%s'\n", what.c_str());
      return 2;
    }
    std::puts("done");
    std::fflush(stdout);
  }
  return 0;
}
