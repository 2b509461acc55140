#include "threadgroup.h"

#include <cstring>

namespace moeblas::emu {
namespace {

// Between two pieces of threadgroup memory, so that running past one is not a hit on the next.
constexpr std::size_t kGap = 128;
// The value of mem_flags::mem_threadgroup.
constexpr unsigned kOrdersThreadgroupMemory = 2;

constexpr std::size_t kArenaBytes = 2 * Limits::kThreadgroupBytes;

bool same_site(const Site& a, const Site& b) {
  return a.line == b.line && a.column == b.column &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string to_string(const Site& site) {
  if (!site.file) return "its start";
  return std::string(site.file) + ":" + std::to_string(site.line) + ":" +
         std::to_string(site.column);
}

std::string to_string(Size s) {
  return "(" + std::to_string(s.x) + ", " + std::to_string(s.y) + ", " + std::to_string(s.z) + ")";
}

}  // namespace

__thread Threadgroup* Threadgroup::running_group_ = nullptr;

Threadgroup::Threadgroup(const Command& command, const DispatchOptions& options, Size threadgroups,
                         Size threads)
    : command_(command),
      options_(options),
      groups_(threadgroups),
      threads_(threads),
      thread_count_(static_cast<unsigned>(threads.count())),
      // Stacks are kept from one dispatch to the next: mapping them costs more than a small kernel.
      lanes_([]() -> std::vector<std::unique_ptr<Lane>>& {
        thread_local std::vector<std::unique_ptr<Lane>> pool;
        return pool;
      }()),
      simdgroups_((thread_count_ + 31) / 32),
      arena_(kArenaBytes),
      shadow_(kArenaBytes) {
  while (lanes_.size() < thread_count_) lanes_.push_back(std::make_unique<Lane>());
}

void Threadgroup::run(Size position) {
  at_ = position;
  done_ = at_barrier_ = 0;
  unwritten_.clear();
  first_epoch_ = ++epoch_;
  // Whatever is read before it is written should spoil the result: 0xff.. is a NaN in any format.
  std::memset(arena_.data(), 0xff, arena_.size());
  for (std::size_t s = 0; s < simdgroups_.size(); ++s) {
    const unsigned rest = thread_count_ - static_cast<unsigned>(s) * 32;
    simdgroups_[s].lanes = rest < 32 ? rest : 32;
    simdgroups_[s].waiting = simdgroups_[s].elsewhere = 0;
  }
  for (unsigned t = 0; t < thread_count_; ++t) {
    Lane& lane = *lanes_[t];
    lane.group = this;
    lane.wait = Wait::none;
    lane.last_met = Site{nullptr, 0, 0};
    lane.fiber.start(&Threadgroup::lane_main, &lane);
  }
  const std::uint64_t number =
      position.x + std::uint64_t(groups_.x) * (position.y + std::uint64_t(groups_.y) * position.z);
  queue_.start(thread_count_, options_.schedule, options_.seed + number);
  Threadgroup* outer = running_group_;
  running_group_ = this;
  running_ = static_cast<unsigned>(queue_.take());
  Fiber::switch_to(main_, self().fiber);
  running_group_ = outer;
  if (failed_) throw Error(failure_kind_, failure_);
}

void Threadgroup::lane_main(void* lane) {
  Threadgroup& group = *static_cast<Lane*>(lane)->group;
  group.command_.row_->run_lane();
  group.finish();
}

void Threadgroup::finish() {
  if (at_barrier_ != 0 || group_of_self().waiting != 0) {
    report_return();
    abandon();
  }
  self().wait = Wait::done;
  ++group_of_self().elsewhere;
  if (++done_ == thread_count_) {
    report_unwritten();
    Fiber::switch_to(self().fiber, main_);
  } else {
    leave_for(queue_.take());
  }
  __builtin_unreachable();
}

void Threadgroup::step_aside() {
  const int next = queue_.take();
  if (next == static_cast<int>(running_)) return;
  leave_for(next);
}

void Threadgroup::leave_for(int next) {
  if (next < 0) {
    set_failure(ErrorKind::collective, "no lane can go on");
    abandon();
  }
  Fiber& from = self().fiber;
  running_ = static_cast<unsigned>(next);
  Fiber::switch_to(from, self().fiber);
}

void Threadgroup::abandon() {
  Fiber::switch_to(self().fiber, main_);
  __builtin_unreachable();
}

void Threadgroup::set_failure(ErrorKind kind, const std::string& what) {
  failed_ = true;
  failure_kind_ = kind;
  failure_ = "kernel " + command_.name_ + ", threadgroup " + to_string(at_) + ": " + what;
  if (!unwritten_.empty() && what != unwritten_) failure_ += "; before that: " + unwritten_;
}

bool Threadgroup::report_unwritten() {
  if (unwritten_.empty()) return false;
  set_failure(ErrorKind::bounds, unwritten_);
  return true;
}

void Threadgroup::fail(ErrorKind kind, const char* what, unsigned long number, const Site& site) {
  set_failure(kind, std::string(what) + " " + std::to_string(number) + " (" + to_string(site) +
                        ", " + who(running_) + ")");
  abandon();
}

void Threadgroup::fail_at(ErrorKind kind, const char* what, const Site& site) {
  set_failure(kind, std::string(what) + " (" + to_string(site) + ", " + who(running_) + ")");
  abandon();
}

std::string Threadgroup::who(unsigned thread) const {
  return "thread " + std::to_string(thread) + " (simdgroup " + std::to_string(thread / 32) +
         ", lane " + std::to_string(thread % 32) + ")";
}

std::string Threadgroup::place(unsigned thread) const {
  const Lane& lane = *lanes_[thread];
  switch (lane.wait) {
    case Wait::done:
      return "has returned";
    case Wait::none:
      return "is past " + to_string(lane.last_met);
    case Wait::collective:
    case Wait::barrier:
      break;
  }
  return std::string("is at ") + lane.operation + " (" + to_string(lane.site) + ")";
}

void Threadgroup::report_meeting(const char* operation, const Site& site, unsigned parameter) {
  const unsigned first = running_ / 32 * 32;
  const Simdgroup& group = group_of_self();
  if (group.lanes != 32) {
    set_failure(ErrorKind::collective, std::string(operation) + " (" + to_string(site) +
                                           ") in a simdgroup of " + std::to_string(group.lanes) +
                                           " lanes: it needs all 32");
    return;
  }
  for (unsigned t = first; t < first + 32; ++t) {
    const Lane& other = *lanes_[t];
    if (other.wait == Wait::none) continue;
    const bool meets = other.wait == Wait::collective && same_site(other.site, site) &&
                       std::strcmp(other.operation, operation) == 0;
    if (meets && other.parameter == parameter) continue;
    std::string what = "collective not uniform: " + who(running_) + " is at " + operation + " (" +
                       to_string(site) + ") ";
    if (meets) {
      what += "with " + std::to_string(parameter) + " where " + who(t) + " has " +
              std::to_string(other.parameter);
    } else {
      what += "while " + who(t) + " " + place(t);
    }
    set_failure(ErrorKind::collective, what);
    return;
  }
}

const unsigned char* Threadgroup::exchange(const char* operation, const Site& site,
                                           const void* value, unsigned bytes, unsigned parameter) {
  Simdgroup& group = group_of_self();
  Lane& lane = self();
  bool meets = group.elsewhere == 0 && group.lanes == 32;
  if (meets && group.waiting != 0) {
    const Lane& other = *lanes_[group.first_waiting];
    meets = same_site(other.site, site) && other.parameter == parameter &&
            std::strcmp(other.operation, operation) == 0;
  }
  if (!meets) {
    report_meeting(operation, site, parameter);
    abandon();
  }
  unsigned char* const slots = group.slots[group.turn];
  std::memcpy(slots + lane_index() * kSlotBytes, value, bytes);
  lane.last_met = site;
  if (++group.waiting < 32) {
    group.first_waiting = running_;
    lane.wait = Wait::collective;
    lane.operation = operation;
    lane.site = site;
    lane.parameter = parameter;
    step_aside();
    return slots;
  }
  group.waiting = 0;
  group.turn ^= 1;
  const unsigned first = running_ / 32 * 32;
  for (unsigned t = first; t < first + 32; ++t) lanes_[t]->wait = Wait::none;
  queue_.make_ready_simdgroup(running_ / 32, ~(1u << lane_index()));
  if (queue_.flip()) {
    queue_.make_ready(running_);
    step_aside();
  }
  return slots;
}

void Threadgroup::simdgroup_barrier(unsigned flags, const Site& site) {
  Simdgroup& group = group_of_self();
  const std::uint32_t epoch = group.epoch;
  exchange("simdgroup_barrier", site, &flags, sizeof flags, flags);
  // The first lane to leave opens the epoch for all: none can be at the next barrier before.
  if ((flags & kOrdersThreadgroupMemory) && group.epoch == epoch) group.epoch = epoch + 1;
}

void Threadgroup::report_barrier(const Site& site) {
  for (unsigned t = 0; t < thread_count_; ++t) {
    const Lane& other = *lanes_[t];
    if (other.wait == Wait::none) continue;
    if (other.wait == Wait::barrier && same_site(other.site, site)) continue;
    // Another simdgroup may still be in a collective on its way here.
    if (other.wait == Wait::collective && t / 32 != running_ / 32) continue;
    set_failure(ErrorKind::collective, "barrier not uniform: " + who(running_) +
                                           " is at threadgroup_barrier (" + to_string(site) +
                                           ") while " + who(t) + " " + place(t));
    return;
  }
}

void Threadgroup::threadgroup_barrier(unsigned flags, const Site& site) {
  const bool meets = done_ == 0 && group_of_self().waiting == 0 &&
                     (at_barrier_ == 0 || same_site(lanes_[first_at_barrier_]->site, site));
  if (!meets) {
    report_barrier(site);
    abandon();
  }
  Lane& lane = self();
  lane.last_met = site;
  if (++at_barrier_ < thread_count_) {
    first_at_barrier_ = running_;
    ++group_of_self().elsewhere;
    lane.wait = Wait::barrier;
    lane.operation = "threadgroup_barrier";
    lane.site = site;
    step_aside();
    return;
  }
  at_barrier_ = 0;
  if (flags & kOrdersThreadgroupMemory) {
    if (report_unwritten()) abandon();
    ++epoch_;
  }
  for (Simdgroup& group : simdgroups_) group.elsewhere = 0;
  for (unsigned t = 0; t < thread_count_; ++t) {
    lanes_[t]->wait = Wait::none;
    queue_.make_ready(t);
  }
  step_aside();
}

void Threadgroup::report_return() {
  for (unsigned t = 0; t < thread_count_; ++t) {
    const Lane& other = *lanes_[t];
    const bool waits_for_me =
        other.wait == Wait::barrier || (other.wait == Wait::collective && t / 32 == running_ / 32);
    if (!waits_for_me) continue;
    set_failure(ErrorKind::collective,
                std::string(other.wait == Wait::barrier ? "barrier" : "collective") +
                    " not uniform: " + who(running_) + " has returned while " + who(t) + " " +
                    place(t));
    return;
  }
}

// Atomics of several lanes may come in any order; the random schedule makes use of that.
void Threadgroup::before_atomic() {
  if (!queue_.flip()) return;
  queue_.make_ready(running_);
  step_aside();
}

bool Threadgroup::add_shared(const char* name, std::size_t bytes, std::size_t alignment,
                             const Site& site, int argument, std::size_t& offset) {
  const std::size_t rounded = (bytes + 15) / 16 * 16;
  if (shared_bytes_ + rounded > Limits::kThreadgroupBytes) {
    set_failure(ErrorKind::limit, std::string("threadgroup memory: ") + name + " brings it to " +
                                      std::to_string(shared_bytes_ + rounded) + " bytes, past " +
                                      std::to_string(Limits::kThreadgroupBytes));
    return false;
  }
  const std::size_t base = reinterpret_cast<std::size_t>(arena_.data());
  const std::size_t unit = alignment < 16 ? 16 : alignment;
  offset = (base + arena_used_ + kGap + unit - 1) / unit * unit - base;
  if (offset + bytes + kGap > arena_.size()) {
    set_failure(ErrorKind::limit, "threadgroup memory: too many pieces");
    return false;
  }
  arena_used_ = offset + bytes;
  shared_bytes_ += rounded;
  shared_.push_back({name, offset, bytes, site, argument});
  return true;
}

void* Threadgroup::shared_array(const char* name, std::size_t bytes, std::size_t alignment,
                                const Site& site) {
  for (const Shared& s : shared_)
    if (s.argument < 0 && same_site(s.site, site)) return arena_.data() + s.offset;
  std::size_t offset = 0;
  if (!add_shared(name, bytes, alignment, site, -1, offset)) abandon();
  return arena_.data() + offset;
}

void* Threadgroup::threadgroup_argument(unsigned index, std::size_t alignment) {
  for (const Shared& s : shared_)
    if (s.argument == static_cast<int>(index)) return arena_.data() + s.offset;
  const auto length = command_.threadgroup_bytes_.find(index);
  const Site none{nullptr, 0, 0};
  if (length == command_.threadgroup_bytes_.end())
    fail(ErrorKind::usage, "no length was set for threadgroup memory", index, none);
  std::size_t offset = 0;
  bool added;
  {
    const std::string name = "threadgroup argument " + std::to_string(index);
    added =
        add_shared(name.c_str(), length->second, alignment, none, static_cast<int>(index), offset);
  }
  if (!added) abandon();
  return arena_.data() + offset;
}

unsigned Threadgroup::position(Position which, unsigned axis) const {
  const auto of = [axis](Size s) { return axis == 0 ? s.x : axis == 1 ? s.y : s.z; };
  const Size thread = {running_ % threads_.x, running_ / threads_.x % threads_.y,
                       running_ / threads_.x / threads_.y};
  switch (which) {
    case Position::thread_in_grid:
      return of(at_) * of(threads_) + of(thread);
    case Position::thread_in_threadgroup:
      return of(thread);
    case Position::threadgroup_in_grid:
      return of(at_);
    case Position::threads_per_threadgroup:
      return of(threads_);
    case Position::threadgroups_per_grid:
      return of(groups_);
    case Position::threads_per_grid:
      return of(groups_) * of(threads_);
    case Position::thread_index_in_threadgroup:
      return running_;
    case Position::thread_index_in_simdgroup:
      return running_ % 32;
    case Position::simdgroup_index_in_threadgroup:
      return running_ / 32;
    case Position::simdgroups_per_threadgroup:
      return (thread_count_ + 31) / 32;
    case Position::threads_per_simdgroup:
      return 32;
  }
  return 0;
}

}  // namespace moeblas::emu
