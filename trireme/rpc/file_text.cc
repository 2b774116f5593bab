#include "trireme/rpc/file_text.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

absl::StatusOr<std::string> read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.is_open() && !file.bad()) return text;
  return make_status(ErrorCode::kNotFound,
                     absl::StrCat("cannot read ", path, ": ", strerror(errno)));
}

}  // namespace trireme::internal
