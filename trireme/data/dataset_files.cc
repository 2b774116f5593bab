#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/data/csv_format.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/data/file_facts.h"
#include "trireme/data/parquet_reader.h"
#include "trireme/data/safetensors_rows.h"

// The methods of Dataset that make sources of files. Patterns are resolved here, so that all
// workers read the same files in the same order, and a saved position means the same element later.
namespace trireme {
namespace {

bool is_pattern(const std::string& path) {
  return path.find_first_of("*?[") != std::string::npos;
}

// Returns the files whose names match a pattern, sorted. Only the last part of a path may be one.
std::vector<std::string> matching_files(const std::string& pattern) {
  const size_t slash = pattern.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : pattern.substr(0, slash);
  if (is_pattern(folder)) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("'", pattern,
                             "' has a wildcard in the name of a folder; only the "
                             "name of the file may have wildcards"));
  }
  const std::string name = pattern.substr(slash + 1);
  std::vector<std::string> paths;
  for (const std::string& file : value_or_throw(Files::local().list(slash == 0       ? "/"
                                                                    : folder.empty() ? "."
                                                                                     : folder))) {
    if (fnmatch(name.c_str(), file.c_str(), FNM_PERIOD) != 0) continue;
    paths.push_back(slash == std::string::npos ? file : join_path(folder, file));
  }
  if (paths.empty()) {
    throw Error(ErrorCode::kNotFound, absl::StrCat("no file matches '", pattern, "'"));
  }
  return paths;
}

proto::DatasetStep files_step(const FileNames& files, const std::vector<Column>& columns,
                              int threads, bool skip_bad) {
  proto::DatasetStep def;
  for (const std::string& pattern : files.patterns()) {
    if (!is_pattern(pattern)) {
      def.mutable_files()->add_names(pattern);
      continue;
    }
    for (std::string& path : matching_files(pattern)) {
      def.mutable_files()->add_names(std::move(path));
    }
  }
  if (def.files().names().empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a dataset of files needs at least one file");
  }
  for (const Column& column : columns)
    *def.mutable_files()->add_columns() = internal::to_def(column);
  def.mutable_files()->set_threads(static_cast<uint32_t>(std::max(threads, 0)));
  def.mutable_files()->set_skip_bad(skip_bad);
  return def;
}

Dataset source_dataset(proto::DatasetStep def) {
  return internal::Access<Dataset>::make(
      value_or_throw(internal::add_step(nullptr, std::move(def), {})));
}

// Sets the columns of a dataset that was made without: the label, and all other fields together.
void set_label(const std::vector<std::string>& names, const std::string& label,
               const std::string& path, proto::DatasetStep::Files& files) {
  const std::string last = label.empty() ? names.back() : label;
  if (std::count(names.begin(), names.end(), last) != 1 || names.size() < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the label '", last,
                             "' must be one of at least two fields; the first "
                             "line has ",
                             names.size(), " fields"),
                {"", absl::StrCat("file '", path, "'")});
  }
  const auto others = static_cast<int64_t>(names.size() - 1);
  *files.add_columns() = internal::to_def({.name = "(all but the label)", .sizes = {others}});
  *files.add_columns() = internal::to_def({.name = last});
  for (const std::string& name : names) files.mutable_csv()->add_columns(name == last ? 2 : 1);
}

// Finds the fields of the columns by the names in the first line.
void set_fields(const std::vector<std::string>& names, const std::string& path,
                proto::DatasetStep::Files& files) {
  std::map<std::string, uint32_t> numbers;
  for (int i = 0; i < files.columns_size(); ++i) {
    numbers[files.columns(i).name()] = static_cast<uint32_t>(i + 1);
  }
  for (const std::string& name : names) {
    const auto found = numbers.find(name);
    files.mutable_csv()->add_columns(found == numbers.end() ? 0 : found->second);
    if (found != numbers.end()) numbers.erase(found);
  }
  std::string missing;
  for (const auto& [name, number] : numbers) {
    absl::StrAppend(&missing, missing.empty() ? "'" : ", '", name, "'");
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("the first line does not have the columns ", missing),
              {"", absl::StrCat("file '", path, "'")});
}

}  // namespace

Dataset Dataset::text_lines(const FileNames& files, const TextOptions& options) {
  proto::DatasetStep def = files_step(files, {text_column("line", options.bytes)}, options.threads,
                                      options.skip_bad_records);
  def.mutable_files()->mutable_text_lines();
  return source_dataset(std::move(def));
}

Dataset Dataset::csv(const FileNames& files, const CsvOptions& options) {
  proto::DatasetStep def =
      files_step(files, options.columns, options.threads, options.skip_bad_records);
  auto& csv = *def.mutable_files()->mutable_csv();
  csv.set_delimiter(std::string(1, options.delimiter));
  csv.set_has_header(options.has_header);
  const std::string& path = def.files().names(0);
  if (!options.has_header && options.columns.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "CSV files without a line of names need columns; set CsvOptions::columns",
                {"", absl::StrCat("file '", path, "'")});
  }
  if (!options.has_header) {
    uint32_t number = 0;
    for (const Column& column : options.columns) {
      int64_t fields = 1;
      if (!column.is_text) {
        for (const int64_t size : column.sizes) fields *= std::max<int64_t>(size, 0);
      }
      ++number;
      for (int64_t i = 0; i < fields; ++i) csv.add_columns(number);
    }
    return source_dataset(std::move(def));
  }
  const std::vector<std::string> names =
      value_or_throw(internal::read_csv_header(Files::local(), path, options.delimiter));
  csv.mutable_header()->Add(names.begin(), names.end());
  if (options.columns.empty()) {
    set_label(names, options.label, path, *def.mutable_files());
  } else {
    set_fields(names, path, *def.mutable_files());
  }
  return source_dataset(std::move(def));
}

Dataset Dataset::tf_records(const FileNames& files, const TfRecordOptions& options) {
  proto::DatasetStep def =
      files_step(files, options.columns, options.threads, options.skip_bad_records);
  def.mutable_files()->mutable_tf_record();
  return source_dataset(std::move(def));
}

Dataset Dataset::parquet(const FileNames& files, const ParquetOptions& options) {
  proto::DatasetStep def = files_step(files, options.columns, options.threads, false);
  def.mutable_files()->mutable_parquet();
  if (options.columns.empty()) {
    for (const Column& column :
         value_or_throw(internal::parquet_columns(Files::local(), def.files().names(0)))) {
      *def.mutable_files()->add_columns() = internal::to_def(column);
    }
  }
  return source_dataset(std::move(def));
}

Dataset Dataset::safetensors(const FileNames& files, const SafetensorsOptions& options) {
  proto::DatasetStep def = files_step(files, options.columns, 1, false);
  def.mutable_files()->mutable_safetensors();
  if (options.columns.empty()) {
    for (const Column& column :
         value_or_throw(internal::safetensors_columns(Files::local(), def.files().names(0)))) {
      *def.mutable_files()->add_columns() = internal::to_def(column);
    }
  }
  return source_dataset(std::move(def));
}

}  // namespace trireme
