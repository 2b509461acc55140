// Binding and dispatching: the caller's side, with Metal's documented limits.
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "../emulator.h"
#include "registry.h"
#include "threadgroup.h"

namespace moeblas::emu {
namespace {

std::string number(std::uint64_t n) { return std::to_string(n); }

Size position_of(std::uint64_t group, Size groups) {
  return {static_cast<unsigned>(group % groups.x),
          static_cast<unsigned>(group / groups.x % groups.y),
          static_cast<unsigned>(group / groups.x / groups.y)};
}

// The order in which threadgroups start follows the schedule too.
std::vector<std::uint64_t> order_of(std::uint64_t count, const DispatchOptions& options) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t(0));
  if (options.schedule == Schedule::reverse) std::reverse(order.begin(), order.end());
  if (options.schedule == Schedule::random) {
    std::mt19937_64 random(options.seed);
    for (std::uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  return order;
}

}  // namespace

Command::Command(const std::string& kernel)
    : name_(kernel), row_(find_kernel(kernel)), bindings_(Limits::kBufferIndices) {
  if (!row_) throw Error(ErrorKind::usage, "there is no kernel " + kernel);
}

Command::Binding& Command::binding(unsigned index, const char* caller) {
  if (index >= Limits::kBufferIndices)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": " + caller + " at index " + number(index) +
                                      ", past " + number(Limits::kBufferIndices - 1));
  return bindings_[index];
}

Command& Command::bind(unsigned index, void* data, std::size_t bytes, std::size_t offset) {
  Binding& b = binding(index, "a buffer");
  b = Binding{};
  b.address = reinterpret_cast<std::size_t>(data);
  b.bytes = data ? bytes : 0;
  b.offset = offset;
  if (offset > b.bytes)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": offset " + number(offset) + " at index " +
                                      number(index) + ", past " + number(b.bytes) + " bytes");
  b.bound = b.writable = true;
  return *this;
}

Command& Command::bind(unsigned index, const void* data, std::size_t bytes) {
  bind(index, const_cast<void*>(data), bytes);
  bindings_[index].writable = false;
  return *this;
}

Command& Command::set_bytes(unsigned index, const void* data, std::size_t bytes) {
  Binding& b = binding(index, "bytes");
  if (bytes > Limits::kSetBytes || bytes == 0)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": " + number(bytes) +
                                      " bytes set at index " + number(index) + ": 1 to " +
                                      number(Limits::kSetBytes) + " are allowed");
  const auto* first = static_cast<const unsigned char*>(data);
  b = Binding{};
  b.copy.assign(first, first + bytes);
  b.address = reinterpret_cast<std::size_t>(b.copy.data());
  b.bytes = bytes;
  b.bound = true;
  return *this;
}

Command& Command::set_threadgroup_memory(unsigned index, std::size_t bytes) {
  binding(index, "threadgroup memory");
  if (bytes % 16 != 0)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": threadgroup memory of " + number(bytes) +
                                      " bytes is not a multiple of 16");
  threadgroup_bytes_[index] = bytes;
  std::size_t total = 0;
  for (const auto& entry : threadgroup_bytes_) total += entry.second;
  if (total > Limits::kThreadgroupBytes)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": threadgroup memory of " + number(total) +
                                      " bytes, past " + number(Limits::kThreadgroupBytes));
  return *this;
}

void Command::dispatch(Size threadgroups, Size threads, const DispatchOptions& options) const {
  if (threads.count() == 0 || threads.count() > Limits::kThreadsPerThreadgroup)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": " + number(threads.count()) +
                                      " threads per threadgroup: 1 to " +
                                      number(Limits::kThreadsPerThreadgroup) + " are allowed");
  if (threadgroups.count() == 0)
    throw Error(ErrorKind::limit, "kernel " + name_ + ": a grid of no threadgroup");

  const std::vector<std::uint64_t> order = order_of(threadgroups.count(), options);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      Threadgroup group(*this, options, threadgroups, threads);
      for (std::size_t i = next++; i < order.size(); i = next++)
        group.run(position_of(order[i], threadgroups));
    } catch (...) {
      next = order.size();
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  for (unsigned t = 1; t < options.os_threads && t < order.size(); ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

void* Threadgroup::buffer_argument(unsigned index, std::size_t bytes, std::size_t alignment) {
  const Site none{nullptr, 0, 0};
  if (index >= command_.bindings_.size())
    fail(ErrorKind::limit, "the kernel declares an index past the last: buffer", index, none);
  const Command::Binding& b = command_.bindings_[index];
  if (!b.bound) fail(ErrorKind::usage, "nothing is bound at buffer", index, none);
  if (bytes > b.bytes - b.offset)
    fail(ErrorKind::bounds, "too few bytes for the argument at buffer", index, none);
  if ((b.address + b.offset) % alignment != 0)
    fail(ErrorKind::bounds, "not aligned for the argument's type: buffer", index, none);
  return reinterpret_cast<void*>(b.address + b.offset);
}

}  // namespace moeblas::emu
