#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <utility>

namespace trireme {

// A small file system, mounted at a new folder until it is destroyed. Needs the right to mount one.
class SmallDisk {
 public:
  // `size` is a number of bytes, or one with a unit, such as "25m".
  SmallDisk(std::string path, const std::string& size) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;

  // Returns true if the disk exists.
  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool mounted_ = false;
};

}  // namespace trireme
