#include "job.h"

#include <algorithm>
#include <cstring>

namespace moeblas::gpu {
namespace {

constexpr uint8_t kGuardByte = 0xa5;

int64_t offset_of(int64_t flat, const TensorView& t) {
  int64_t offset = 0;
  for (int i = t.ndim() - 1; i >= 0; --i) {
    offset += flat % t.shape[i] * t.strides[i];
    flat /= t.shape[i];
  }
  return offset * static_cast<int64_t>(size_of(t.dtype));
}

int64_t first_element(const Tensor& t) { return static_cast<uint8_t*>(t.view.data) - t.base; }

}  // namespace

Block::Block(const Job& job, size_t workspace_bytes, uint8_t poison)
    : job_(job), workspace_bytes_(workspace_bytes) {
  size_t end = kGuard;
  for (const Tensor& t : job.tensors) {
    // As the host's memory is aligned, and no better.
    end = (end + 63) / 64 * 64 + reinterpret_cast<uintptr_t>(t.base) % 64;
    at_.push_back(end);
    end += t.bytes + kGuard;
  }
  workspace_at_ = (end + 255) / 256 * 256;
  bytes_.assign(workspace_at_ + workspace_bytes + kGuard, kGuardByte);
  std::memset(bytes_.data() + workspace_at_, poison, workspace_bytes);
  for (size_t i = 0; i < at_.size(); ++i) {
    const Tensor& t = job.tensors[i];
    if (t.bytes == 0) continue;
    std::memcpy(bytes_.data() + at_[i], t.base, t.bytes);
    if (t.role == Role::output) std::memset(bytes_.data() + at_[i], poison, t.bytes);
  }
}

std::vector<TensorView> Block::views(uint8_t* base, Device device) const {
  std::vector<TensorView> views;
  for (size_t i = 0; i < at_.size(); ++i) {
    TensorView v = job_.tensors[i].view;
    if (v.present) v.data = base + at_[i] + first_element(job_.tensors[i]);
    v.device = device;
    views.push_back(v);
  }
  return views;
}

std::vector<uint8_t> Block::results(std::span<const uint8_t> returned) const {
  std::vector<uint8_t> elements;
  std::vector<bool> written(bytes_.size());
  std::fill_n(written.begin() + static_cast<int64_t>(workspace_at_), workspace_bytes_, true);
  for (size_t i = 0; i < at_.size(); ++i) {
    const Tensor& t = job_.tensors[i];
    if (t.role != Role::output || !t.view.present) continue;
    const size_t width = size_of(t.view.dtype);
    for (int64_t e = 0; e < t.view.numel(); ++e) {
      const auto at = static_cast<size_t>(static_cast<int64_t>(at_[i]) + first_element(t) +
                                          offset_of(e, t.view));
      for (size_t b = at; b < at + width; ++b) {
        elements.push_back(returned[b]);
        written[b] = true;
      }
    }
  }
  for (size_t b = 0; b < bytes_.size(); ++b) {
    if (written[b] || returned[b] == bytes_[b]) continue;
    const auto after = std::upper_bound(at_.begin(), at_.end(), b) - at_.begin();
    throw std::runtime_error("byte " + std::to_string(b) + " after the start of tensor " +
                             std::to_string(after - 1) +
                             " was written, which is no element of an output");
  }
  return elements;
}

Plan plan_on(const Job& job, Device device, const Options& options) {
  std::vector<TensorView> views;
  for (const Tensor& t : job.tensors) {
    views.push_back(t.view);
    views.back().device = device;
  }
  return plan([&](const Options& o) { job.call(views, o); }, options);
}

std::vector<uint8_t> run_on_cpu(const Job& job, const Options& options) {
  Block block(job, 0, 0xff);
  std::vector<uint8_t> memory(block.size() + 64);
  uint8_t* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  std::memcpy(base, block.bytes(), block.size());
  job.call(block.views(base, {}), options);
  return block.results({base, block.size()});
}

void change_ids(const Job& job, const Block& block, OtherIds how, uint8_t* bytes) {
  for (size_t i = 0; i < job.tensors.size(); ++i) {
    const Tensor& t = job.tensors[i];
    if (t.role != Role::ids || !t.view.present) continue;
    uint8_t* first = bytes + block.at(i) + first_element(t);
    const size_t width = size_of(t.view.dtype);
    const int64_t count = t.view.numel();
    std::vector<uint8_t> values;
    for (int64_t e = 0; e < count; ++e) {
      values.insert(values.end(), first + offset_of(e, t.view),
                    first + offset_of(e, t.view) + static_cast<int64_t>(width));
    }
    for (int64_t e = 0; e < count; ++e) {
      uint8_t* to = first + offset_of(e, t.view);
      if (how == OtherIds::none) {
        std::memset(to, 0xff, width);  // -1, or the largest unsigned number
      } else {
        std::memcpy(to, values.data() + static_cast<size_t>(count - 1 - e) * width, width);
      }
    }
  }
}

}  // namespace moeblas::gpu
