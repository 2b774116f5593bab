// A CRC is the remainder of a polynomial over GF(2), so the checksum of a sequence that is followed
// by n zero bytes is the checksum times x^(8n). This gives two things. crc32c_combine() shifts the
// first checksum over the length of the second part and adds the second. And the instruction, which
// takes three cycles but can begin each cycle, is used on three adjacent blocks at a time, whose
// results are then combined with a table for the length of a block.
#include "trireme/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define TRIREME_CRC_INSTRUCTION
#endif

namespace trireme {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, lowest power in the highest bit.
constexpr uint32_t kOne = uint32_t{1} << 31;  // The polynomial 1.

// Returns the product of two polynomials modulo kPolynomial.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// Entry i is x^(8 * 2^i): a shift over 2^i bytes.
constexpr std::array<uint32_t, 64> make_shifts() {
  std::array<uint32_t, 64> shifts = {};
  uint32_t power = kOne >> 8;
  for (uint32_t& shift : shifts) {
    shift = power;
    power = multiply(power, power);
  }
  return shifts;
}
constexpr std::array<uint32_t, 64> kShifts = make_shifts();

// Returns the checksum `crc` after `bytes` more zero bytes, without the inversion at both ends.
constexpr uint32_t shift_over(uint32_t crc, uint64_t bytes) {
  for (int i = 0; bytes != 0; ++i, bytes >>= 1) {
    if ((bytes & 1) != 0) crc = multiply(kShifts[i], crc);
  }
  return crc;
}

// Entry [k][n] is the checksum n << 8k, shifted over a fixed number of bytes.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTable make_shift_table(uint64_t bytes) {
  const uint32_t shift = shift_over(kOne, bytes);
  ShiftTable table = {};
  for (int k = 0; k < 4; ++k) {
    for (uint32_t n = 0; n < 256; ++n) table[k][n] = multiply(shift, n << (8 * k));
  }
  return table;
}

// Entry [k][n] is the checksum of the byte n followed by k zero bytes, for eight bytes at a time.
constexpr std::array<std::array<uint32_t, 256>, 8> make_byte_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables = {};
  for (uint32_t n = 0; n < 256; ++n) {
    for (int k = 0; k < 8; ++k) tables[k][n] = shift_over(n, k + 1);
  }
  return tables;
}

#ifdef TRIREME_CRC_INSTRUCTION

uint32_t shift_by_table(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 255] ^ table[1][(crc >> 8) & 255] ^ table[2][(crc >> 16) & 255] ^
         table[3][crc >> 24];
}

uint64_t load_word(const char* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Consumes groups of three blocks of kBlock bytes each, and advances `data`.
template <size_t kBlock>
__attribute__((target("sse4.2"))) uint64_t crc_of_triples(const char*& data, size_t& bytes,
                                                          uint64_t crc) {
  static constexpr ShiftTable kTable = make_shift_table(kBlock);
  while (bytes >= 3 * kBlock) {
    uint64_t second = 0, third = 0;
    for (const char* end = data + kBlock; data < end; data += 8) {
      crc = _mm_crc32_u64(crc, load_word(data));
      second = _mm_crc32_u64(second, load_word(data + kBlock));
      third = _mm_crc32_u64(third, load_word(data + 2 * kBlock));
    }
    crc = shift_by_table(kTable, static_cast<uint32_t>(crc)) ^ second;
    crc = shift_by_table(kTable, static_cast<uint32_t>(crc)) ^ third;
    data += 2 * kBlock;
    bytes -= 3 * kBlock;
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_instruction(const char* data, size_t bytes,
                                                              uint32_t before) {
  uint64_t crc = ~before;
  crc = crc_of_triples<4096>(data, bytes, crc);
  crc = crc_of_triples<256>(data, bytes, crc);
  for (; bytes >= 8; bytes -= 8, data += 8) crc = _mm_crc32_u64(crc, load_word(data));
  auto rest = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++data) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*data));
  return ~rest;
}

#endif

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
#ifdef TRIREME_CRC_INSTRUCTION
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_instruction(static_cast<const char*>(data), bytes, crc);
#endif
  return internal::crc32c_portable(data, bytes, crc);
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return shift_over(first, second_bytes) ^ second;
}

uint32_t internal::crc32c_portable(const void* data, size_t bytes, uint32_t crc) {
  static constexpr auto kTables = make_byte_tables();
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    crc = kTables[7][at[0] ^ (crc & 255)] ^ kTables[6][at[1] ^ ((crc >> 8) & 255)] ^
          kTables[5][at[2] ^ ((crc >> 16) & 255)] ^ kTables[4][at[3] ^ (crc >> 24)] ^
          kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^ kTables[0][at[7]];
  }
  for (; bytes > 0; --bytes, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 255];
  return ~crc;
}

}  // namespace trireme
