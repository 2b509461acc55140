// Memory between pages that cannot be touched, so that one byte too far is a fault at the
// instruction that reads or writes it, not luck.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moeblas::test {

// Where the bytes lie between the guard pages: reads before the start, or past the end, fault.
enum class Side { left, right };

class GuardedMemory {
 public:
  GuardedMemory() = default;
  // right: the last byte is followed by the guard page, up to `alignment`.
  GuardedMemory(size_t bytes, Side side, uint8_t fill, size_t alignment = 1);
  GuardedMemory(GuardedMemory&& other) noexcept { *this = static_cast<GuardedMemory&&>(other); }
  GuardedMemory& operator=(GuardedMemory&& other) noexcept;
  ~GuardedMemory();

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }
  std::span<uint8_t> bytes() const { return {data_, bytes_}; }
  // The bytes and the rest of their pages: what can be written without a fault.
  std::span<uint8_t> pages() const;
  uint64_t hash() const;  // of pages()

 private:
  uint8_t* pages_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// What a crash in this process prints before it ends: the line that runs the case again.
class CrashLine {
 public:
  explicit CrashLine(const std::string& line);
  ~CrashLine();
};

}  // namespace moeblas::test
