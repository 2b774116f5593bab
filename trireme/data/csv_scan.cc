#include "trireme/data/csv_scan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace trireme::internal {
namespace {

constexpr size_t kPart = 64;

// Returns a bit for each of kPart bytes that is the delimiter, a line end or a quote.
uint64_t find_specials(const char* bytes, char delimiter) {
  uint64_t found = 0;
#ifdef __SSE2__
  const __m128i delimiters = _mm_set1_epi8(delimiter);
  const __m128i line_ends = _mm_set1_epi8('\n');
  const __m128i quotes = _mm_set1_epi8('"');
  for (size_t i = 0; i < kPart; i += 16) {
    const __m128i piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const __m128i equal =
        _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(piece, delimiters), _mm_cmpeq_epi8(piece, quotes)),
                     _mm_cmpeq_epi8(piece, line_ends));
    found |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(equal))) << i;
  }
#else
  for (size_t i = 0; i < kPart; ++i) {
    const char byte = bytes[i];
    found |= uint64_t{byte == delimiter || byte == '\n' || byte == '"'} << i;
  }
#endif
  return found;
}

// Returns the place of the byte, or the end of the bytes.
size_t find_byte(std::string_view bytes, size_t from, char byte) {
  return std::min(bytes.find(byte, from), bytes.size());
}

// Returns the place after the quotes that begin at `quote`, or one beyond the end of the bytes if
// they are not closed.
size_t after_quotes(std::string_view bytes, size_t quote) {
  for (size_t at = quote + 1;; ++at) {
    at = find_byte(bytes, at, '"') + 1;
    if (at >= bytes.size() || bytes[at] != '"') return at;
  }
}

// Returns the end of a field without the \r of a line end.
size_t without_return(std::string_view bytes, size_t begin, size_t end) {
  return end > begin && bytes[end - 1] == '\r' ? end - 1 : end;
}

}  // namespace

std::optional<CsvRecord> scan_record(std::string_view bytes, size_t begin, bool is_end,
                                     char delimiter, uint32_t* edges, size_t most) {
  CsvRecord record;
  size_t at = begin;
  for (;;) {
    const size_t field = at;
    if (edges != nullptr && record.fields < most)
      edges[record.fields] = static_cast<uint32_t>(field);
    ++record.fields;
    if (at < bytes.size() && bytes[at] == '"') {
      // Passes over the quotes. A quote that is neither doubled nor the last of its field is wrong:
      // the field then goes on as one without quotes, so that at most this line is lost.
      at = after_quotes(bytes, at);
      if (at > bytes.size()) {
        if (!is_end) return std::nullopt;
        record.is_open = true;
        record.end = bytes.size();
        return record;
      }
    }
    const size_t rest = at;
    while (at < bytes.size() && bytes[at] != delimiter && bytes[at] != '\n') {
      if (bytes[at] == '"') record.fault = "has a quote in a field that does not begin with one";
      ++at;
    }
    if (at == bytes.size() && !is_end) return std::nullopt;
    const bool is_last = at == bytes.size() || bytes[at] == '\n';
    const size_t field_end = is_last ? without_return(bytes, rest, at) : at;
    if (rest > field && field_end > rest) {
      record.fault = "has text between the quote that ends a field and the next delimiter";
    }
    if (!is_last) {
      ++at;
      continue;
    }
    if (edges != nullptr && record.fields <= most) {
      edges[record.fields] = static_cast<uint32_t>(field_end + 1);
    }
    record.end = std::min(at + 1, bytes.size());
    return record;
  }
}

CsvEnd find_record_end(std::string_view bytes, size_t begin, bool is_end, char delimiter) {
  const CsvEnd unfinished = {bytes.size(), is_end, false};
  size_t line_end = begin;
  for (size_t at = begin;;) {
    if (line_end <= at) line_end = find_byte(bytes, at, '\n');
    const size_t quote = at + std::min(bytes.substr(at, line_end - at).find('"'), line_end - at);
    if (quote == line_end) {
      return line_end == bytes.size() ? unfinished : CsvEnd{line_end + 1, true, false};
    }
    at = quote + 1;
    // Other quotes than the first byte of a field are part of the field, which is wrong.
    if (quote != begin && bytes[quote - 1] != delimiter) continue;
    at = after_quotes(bytes, quote);
    if (at > bytes.size()) return {bytes.size(), is_end, true};
  }
}

size_t empty_line(std::string_view bytes, size_t begin, bool is_end) {
  const size_t left = bytes.size() - begin;
  if (left == 0) return 0;
  if (bytes[begin] != '\r') return bytes[begin] == '\n' ? 1 : 0;
  if (left == 1) return is_end ? 1 : 0;
  return bytes[begin + 1] == '\n' ? 2 : 0;
}

std::string_view field_value(std::string_view field, std::string& room) {
  if (field.empty() || field[0] != '"') return field;
  field = field.substr(1, field.size() - 2);
  size_t quote = field.find('"');
  if (quote == std::string_view::npos) return field;
  room.clear();
  while (quote != std::string_view::npos) {
    room.append(field.substr(0, quote + 1));
    field.remove_prefix(quote + 2);  // the second of two
    quote = field.find('"');
  }
  room.append(field);
  return room;
}

CsvScanner::CsvScanner(std::string_view bytes, char delimiter, size_t fields)
    : bytes_(bytes), delimiter_(delimiter), fields_(fields) {
  load_part(0);
}

void CsvScanner::load_part(size_t place) {
  part_ = place;
  const size_t left = bytes_.size() - place;
  if (left >= kPart) {
    specials_ = find_specials(bytes_.data() + place, delimiter_);
    return;
  }
  char last[kPart] = {};
  if (left > 0) std::memcpy(last, bytes_.data() + place, left);
  specials_ = find_specials(last, delimiter_) & ((uint64_t{1} << left) - 1);
}

// Continues the search at `place`, which is not before the current part.
void CsvScanner::move_to(size_t place) {
  if (place - part_ < kPart) {
    specials_ &= ~uint64_t{0} << (place - part_);
  } else {
    load_part(place);
  }
}

// Finds the next delimiter, line end or quote. Returns false at the end of the bytes.
inline bool CsvScanner::next_special(size_t& place) {
  while (specials_ == 0) {
    if (bytes_.size() - part_ <= kPart) return false;
    load_part(part_ + kPart);
  }
  place = part_ + static_cast<size_t>(std::countr_zero(specials_));
  specials_ &= specials_ - 1;
  return true;
}

// Passes over the quotes that begin at `quote`. Returns false unless a delimiter or a line end
// follows them.
bool CsvScanner::skip_quotes(size_t quote) {
  const size_t at = after_quotes(bytes_, quote);
  if (at >= bytes_.size()) return false;
  if (bytes_[at] != delimiter_ && empty_line(bytes_, at, true) == 0) return false;
  move_to(at);
  return true;
}

CsvScanner::Found CsvScanner::next(uint32_t* edges) {
  begin_ = next_;
  if (begin_ >= bytes_.size()) return Found::kEnd;
  edges[0] = static_cast<uint32_t>(begin_);
  size_t count = 0;  // delimiters in the record
  size_t place = 0;
  while (next_special(place)) {
    const char byte = bytes_[place];
    if (byte == delimiter_) {
      if (++count == fields_) return next_carefully(edges);
      edges[count] = static_cast<uint32_t>(place + 1);
    } else if (byte == '"') {
      if (place != edges[count] || !skip_quotes(place)) return next_carefully(edges);
    } else if (count + 1 == fields_) {
      edges[fields_] = static_cast<uint32_t>(without_return(bytes_, edges[count], place) + 1);
      next_ = place + 1;
      return Found::kRow;
    } else if (empty_line(bytes_, begin_, true) > 0) {
      begin_ = next_ = place + 1;
      edges[0] = static_cast<uint32_t>(begin_);
    } else {
      return next_carefully(edges);
    }
  }
  if (fields_ > 1) begin_ += empty_line(bytes_, begin_, true);
  return begin_ < bytes_.size() ? next_carefully(edges) : Found::kEnd;
}

// Finds the record that begins at begin_ again.
CsvScanner::Found CsvScanner::next_carefully(uint32_t* edges) {
  record_ = *scan_record(bytes_, begin_, true, delimiter_, edges, fields_);
  next_ = record_.end;
  move_to(next_);
  const bool is_valid = record_.fault == nullptr && !record_.is_open && record_.fields == fields_;
  return is_valid ? Found::kRow : Found::kFault;
}

std::string CsvScanner::fault() const {
  if (record_.is_open) return "has a quote that is not closed";
  if (record_.fault != nullptr) return record_.fault;
  return absl::StrCat("has ", record_.fields, record_.fields == 1 ? " field" : " fields",
                      ", expected ", fields_);
}

}  // namespace trireme::internal
