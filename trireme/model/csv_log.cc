// A line is added to the file after each epoch. The file is written anew, and replaced at once, if
// an epoch has figures for which it has no column, such as those of a validation every few epochs:
// new columns come last, so that the lines so far need nothing but more separators.
#include "trireme/model/csv_log.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

[[noreturn]] void throw_file_error(const char* what, const std::string& path, int error) {
  throw Error(
      error == ENOSPC || error == EDQUOT ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
      absl::StrCat("CsvLog cannot ", what, " '", path,
                   "': ", std::generic_category().message(error),
                   error == ENOSPC || error == EDQUOT
                       ? "; free space there, or use a folder on another file system"
                       : "; give it a path in a folder that exists and can be written"));
}

void write_lines(const std::string& path, const char* mode, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) throw_file_error("open", path, errno);
  int error = std::fwrite(text.data(), 1, text.size(), file) == text.size() ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error != 0) throw_file_error("write", path, error);
}

void replace_lines(const std::string& path, const std::vector<std::string>& lines) {
  const std::string fresh = path + ".new";
  write_lines(fresh, "w", lines.empty() ? "" : absl::StrJoin(lines, "\n") + "\n");
  if (std::rename(fresh.c_str(), path.c_str()) != 0) throw_file_error("replace", path, errno);
}

// Returns the whole lines of the file, without one that a crash has cut; empty if there is none.
std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  return lines;
}

// Returns the number with as many digits as it takes to read the same number again.
std::string format_number(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

// Returns a field, in quotes if it needs them.
std::string quote_field(const std::string& field, char separator) {
  if (field.find_first_of(absl::StrCat("\"\r\n", std::string(1, separator))) == std::string::npos) {
    return field;
  }
  std::string quoted = "\"";
  for (const char c : field) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + "\"";
}

// Returns the fields of a line, without their quotes.
std::vector<std::string> split_fields(const std::string& line, char separator) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[i++];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == separator && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

}  // namespace

CsvLog::CsvLog(std::string path, CsvLogOptions options)
    : path_(std::move(path)), options_(options) {
  if (path_.empty()) throw Error(ErrorCode::kInvalidArgument, "CsvLog needs the path of its file");
}

void CsvLog::on_train_begin(Fit& fit) {
  opened_ = false;
  writes_ = fit.is_chief();
  if (!writes_) return;
  // A file to be replaced is not touched yet, since a checkpoint may tell which of its lines to
  // keep.
  if (options_.append) open(read_lines(path_));
}

void CsvLog::open(std::vector<std::string> lines) {
  if (lines.empty()) lines = {"epoch"};
  columns_ = split_fields(lines[0], options_.separator);
  columns_.erase(columns_.begin());
  rows_ = static_cast<int64_t>(lines.size()) - 1;
  replace_lines(path_, lines);
  opened_ = true;
}

std::string CsvLog::header() const {
  std::string line = "epoch";
  for (const std::string& name : columns_) {
    line += options_.separator;
    line += quote_field(name, options_.separator);
  }
  return line;
}

void CsvLog::on_epoch_end(Fit& fit, Logs& logs) {
  if (!writes_) return;
  if (!opened_) open({});
  const size_t known = columns_.size();
  for (const auto& [name, value] : logs.entries()) {
    if (std::ranges::find(columns_, name) == columns_.end()) columns_.push_back(name);
  }
  std::string row = absl::StrCat(fit.epoch());
  for (const std::string& name : columns_) {
    row += options_.separator;
    if (logs.contains(name)) row += format_number(logs[name]);
  }
  if (columns_.size() > known) {
    std::vector<std::string> lines = read_lines(path_);
    for (std::string& line : lines) line.append(columns_.size() - known, options_.separator);
    lines.resize(std::max<size_t>(lines.size(), 1));
    lines[0] = header();
    lines.push_back(row);
    replace_lines(path_, lines);
  } else {
    write_lines(path_, "a", row + "\n");
  }
  ++rows_;
}

std::string CsvLog::save() const {
  // Before the first epoch has ended, the file has nothing of this fit.
  return opened_ ? absl::StrCat(rows_) : "";
}

void CsvLog::restore(const std::string& state) {
  opened_ = false;
  if (state.empty() || !writes_) return;
  int64_t rows = 0;
  if (!absl::SimpleAtoi(state, &rows) || rows < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the saved state of CsvLog is malformed: '", state,
                             "' is not a number of lines"));
  }
  std::vector<std::string> lines = read_lines(path_);
  if (static_cast<int64_t>(lines.size()) > rows + 1) lines.resize(rows + 1);
  open(std::move(lines));
}

}  // namespace trireme
