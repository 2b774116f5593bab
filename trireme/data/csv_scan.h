#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Finds records and fields in CSV as RFC 4180 describes it: a field may be in quotes, and then has
// delimiters, line ends and doubled quotes. Lines end with \n or \r\n. A quote in a field without
// quotes is an error, as in tf.data.
namespace trireme::internal {

// A record, as scan_record() has found it.
struct CsvRecord {
  size_t end = 0;               // where the next record begins
  size_t fields = 0;            // number of its fields
  const char* fault = nullptr;  // what is wrong with its quotes; null if nothing is
  bool is_open = false;         // true if the file ends within quotes
};

// Reads the record that begins at `begin`. Returns nullopt if the bytes end before it, unless
// `is_end` is true, because then the file ends there. If `edges` is not null, it receives the
// places where the first `most` fields begin, followed by the place after them (see CsvScanner).
std::optional<CsvRecord> scan_record(std::string_view bytes, size_t begin, bool is_end,
                                     char delimiter, uint32_t* edges = nullptr, size_t most = 0);

// The end of a record.
struct CsvEnd {
  size_t place = 0;       // where the next record begins
  bool is_whole = false;  // false if the bytes end before it, but not the file
  bool is_open = false;   // true if the bytes end within quotes
};

// Does as scan_record(), but finds only the end of the record, and is faster.
CsvEnd find_record_end(std::string_view bytes, size_t begin, bool is_end, char delimiter);

// Returns the length of the empty line that begins at `begin`, with its end, or 0 if there is none.
// `is_end` is true if the file ends with the bytes.
size_t empty_line(std::string_view bytes, size_t begin, bool is_end);

// Returns the value of a field: without the quotes around it, and with one quote for two. `room`
// holds the value if it differs from the field.
std::string_view field_value(std::string_view field, std::string& room);

// Finds the fields of records, one after the other, much faster than scan_record() if they have as
// many fields as expected. The bytes are whole records. Not thread-safe.
class CsvScanner {
 public:
  CsvScanner(std::string_view bytes, char delimiter, size_t fields);

  enum class Found { kRow, kFault, kEnd };
  // Finds the next record. kRow: edges[i] is where field i begins, and edges[i + 1] - 1 where it
  // ends, for all fields. kFault: the record is not valid, see fault(). Empty lines are passed over
  // if more than one field is expected.
  Found next(uint32_t* edges);
  // Returns where the record begins that next() has found.
  size_t begin() const { return begin_; }
  // Returns what is wrong with the record that next() has found.
  std::string fault() const;

 private:
  void load_part(size_t place);
  void move_to(size_t place);
  bool next_special(size_t& place);
  bool skip_quotes(size_t quote);
  Found next_carefully(uint32_t* edges);

  const std::string_view bytes_;
  const char delimiter_;
  const size_t fields_;
  size_t begin_ = 0;  // where the record begins that was found last
  size_t next_ = 0;   // where the next one begins
  // The bytes are searched for delimiters, line ends and quotes in parts of 64: the place of the
  // current part, and a bit for each of these bytes in it that next_special() has not returned.
  size_t part_ = 0;
  uint64_t specials_ = 0;
  CsvRecord record_;  // if the record is not valid
};

}  // namespace trireme::internal
