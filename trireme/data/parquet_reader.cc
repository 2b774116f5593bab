#include "trireme/data/parquet_reader.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/file_facts.h"
#include "trireme/data/parquet_plugin.h"

namespace trireme::internal {
namespace {

// Loads the library from the folders in which this binary looks for its other libraries. The names
// of Arrow's libraries stay local to it: libparquet.so has an OpenSSL of its own and exports it,
// which gRPC must not use. The library is never unloaded, because tensors use its code.
absl::StatusOr<ParquetPlugin*> load_parquet() {
  void* const library = ::dlopen(kParquetLibrary, RTLD_NOW | RTLD_LOCAL);
  void* const function = library == nullptr ? nullptr : ::dlsym(library, kParquetFunction);
  if (function == nullptr) {
    return make_status(
        ErrorCode::kUnimplemented,
        absl::StrCat("Parquet files cannot be read, because Trireme was built without Arrow, or "
                     "Arrow is not at its place any more: ",
                     ::dlerror(),
                     ". Run tools/setup, which installs Arrow, and build and install Trireme "
                     "again; CMake then says that it builds with Parquet."));
  }
  return reinterpret_cast<ParquetPluginFunction*>(function)();
}

// Adds the name of the file to the errors of a reader.
class ParquetFile final : public BlockReader {
 public:
  ParquetFile(std::unique_ptr<BlockReader> rows, const std::string& path)
      : rows_(std::move(rows)), origin_(origin(path)) {}

  absl::StatusOr<BlockPtr> next() override { return named(rows_->next(), origin_); }
  absl::StatusOr<int64_t> skip(int64_t count) override {
    return named(rows_->skip(count), origin_);
  }

  static Origin origin(const std::string& path) { return {"", absl::StrCat("file '", path, "'")}; }
  template <typename T>
  static absl::StatusOr<T> named(absl::StatusOr<T> result, const Origin& origin) {
    if (!result.ok()) return with_origin(result.status(), origin);
    return result;
  }

 private:
  const std::unique_ptr<BlockReader> rows_;
  const Origin origin_;
};

absl::StatusOr<ParquetPlugin*> parquet_plugin() {
  static const absl::StatusOr<ParquetPlugin*>& plugin =
      *new absl::StatusOr<ParquetPlugin*>(load_parquet());
  return plugin;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockReader>> open_parquet(const proto::DatasetStep::Files& def,
                                                          Files& files, const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(ParquetPlugin* const plugin, parquet_plugin());
  std::vector<Column> columns;
  for (const proto::ColumnDef& column : def.columns()) columns.push_back(from_def(column));
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, files.open(path));
  TRIREME_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockReader> rows,
      ParquetFile::named(plugin->open(std::move(file), std::move(columns), def.threads()),
                         ParquetFile::origin(path)));
  return std::make_unique<ParquetFile>(std::move(rows), path);
}

absl::StatusOr<std::vector<Column>> parquet_columns(Files& files, const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(ParquetPlugin* const plugin, parquet_plugin());
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, files.open(path));
  return ParquetFile::named(plugin->columns(std::move(file)), ParquetFile::origin(path));
}

}  // namespace trireme::internal
