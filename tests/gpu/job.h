// A job: one call of an operation as data, so that it can be made on any device, twice, captured
// into a graph, and with other indices; and the device memory to do so in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "moeblas/kernels.h"

namespace moeblas::gpu {

enum class Role { input, ids, output };

// A tensor of a job as it is on the host. For outputs the bytes say what stands between elements.
struct Tensor {
  Role role = Role::input;
  TensorView view;          // absent: an optional argument that is left out
  const uint8_t* base = 0;  // of the memory that the view leads into
  size_t bytes = 0;
};

using Views = std::span<const TensorView>;

struct Judgement {
  std::string failure;  // "" if the result is right
  double worst = 0;     // largest error / bound
  double rms = 0;       // RMS error / that of a float32 sum; 0 where not looked at
};

struct Job {
  std::string op;
  std::string line;  // what it computes, for messages
  std::vector<Tensor> tensors;
  std::function<void(Views, const Options&)> call;
  // Judges the device's outputs (their elements row-major, one after the other) given the CPU
  // backend's. Without it the two must be equal, bit for bit.
  std::function<Judgement(const std::string& kernel, std::span<const uint8_t> device,
                          std::span<const uint8_t> cpu)>
      judge;
  std::shared_ptr<void> keeps;  // what the tensors lead into
};

// The tensors of a job and its workspace in one block, with guards between them, that is made up on
// the host, sent, and looked over when it comes back.
class Block {
 public:
  static constexpr size_t kGuard = 256;

  // device: where views lead; the host otherwise. Outputs and the workspace are filled with
  // `poison`.
  Block(const Job& job, size_t workspace_bytes, uint8_t poison);

  size_t size() const { return bytes_.size(); }
  uint8_t* bytes() { return bytes_.data(); }
  const uint8_t* bytes() const { return bytes_.data(); }
  // Views into a copy of the block at `base`.
  std::vector<TensorView> views(uint8_t* base, Device device) const;
  void* workspace(uint8_t* base) const { return base + workspace_at_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Where a tensor's bytes are.
  size_t at(size_t tensor) const { return at_[tensor]; }

  // The elements of all outputs in a copy that came back; throws if a byte was changed that is
  // neither theirs nor the workspace's.
  std::vector<uint8_t> results(std::span<const uint8_t> returned) const;

 private:
  const Job& job_;
  std::vector<uint8_t> bytes_;
  std::vector<size_t> at_;
  size_t workspace_at_ = 0, workspace_bytes_ = 0;
};

// A device as jobs are run on it: room for the blocks of one thread, and a stream of its own.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual Device device() const = 0;
  virtual void* stream() const = 0;
  // Makes room for a block and copies it there.
  virtual void send(const Block& block) = 0;
  // Where the block is, as the device knows it.
  virtual uint8_t* base() const = 0;
  // Waits for the stream and copies the block back; throws what failed on the device.
  virtual std::vector<uint8_t> fetch(const Block& block) = 0;
};

// The kernel that a call would run on a device, and its workspace.
Plan plan_on(const Job& job, Device device, const Options& options);

// The outputs of a job on the CPU backend.
std::vector<uint8_t> run_on_cpu(const Job& job, const Options& options = {});

// The job with other indices: in reverse order, or all out of range.
enum class OtherIds { reversed, none };
void change_ids(const Job& job, const Block& block, OtherIds how, uint8_t* bytes);

}  // namespace moeblas::gpu
