#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace trireme {

// Creates a temporary folder for a test, and removes it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  // Replaces a file by rename, as a certificate should be renewed.
  void write(const std::string& name, const std::string& text) const {
    const std::string fresh = path_ + "/." + name;
    std::ofstream(fresh, std::ios::binary) << text;
    std::filesystem::rename(fresh, path_ + "/" + name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

 private:
  std::string path_;
};

}  // namespace trireme
