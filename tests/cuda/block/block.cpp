#include "block/block.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "emu/runtime/fiber.h"
#include "support/random.h"

namespace moeblas::test {
namespace {

constexpr uint32_t kLanes = 32;
constexpr size_t kMostBytes = 32;  // of a lane, at a collective
constexpr size_t kArena = 232448;

alignas(1024) thread_local unsigned char arena[kArena];

struct Thread {
  emu::Fiber fiber;
  bool done = false;
  bool looks = false;           // at what another block is to write
  std::function<bool()> ready;  // none: it can go on
};

struct Warp {
  std::array<std::array<unsigned char, kLanes * kMostBytes>, 2> slots;
  uint64_t turn = 0;  // collectives so far
  uint32_t met = 0;
  const char* name = nullptr;
};

struct Barrier {
  uint32_t arrivals = 0, pending = 0;
  int64_t bytes = 0;
  uint64_t phase = 0;
};

struct Numbered {
  uint32_t threads = 0, arrived = 0;
  uint64_t generation = 0;
};

struct Copy {
  uint32_t to;
  size_t bytes;
  std::function<void(unsigned char*)> write;
  uint32_t barrier;
};

struct Block {
  const Grid& grid;
  const std::function<void()>& kernel;
  Random random;
  uint32_t index = 0;
  uint64_t serial = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::map<uint32_t, Barrier> barriers;
  std::map<uint32_t, Numbered> numbered;
  std::vector<Copy> copies;
  std::vector<std::function<void()>> acts;
  emu::Fiber scheduler;
  uint32_t running = 0;
  std::string failure;

  Block(const Grid& g, const std::function<void()>& k, uint64_t seed)
      : grid(g), kernel(k), random(seed) {
    for (uint32_t i = 0; i < g.threads; ++i) threads.push_back(std::make_unique<Thread>());
  }
  void start();
  bool done() const;
  bool go_on(int64_t rounds);
  void wait_for(std::function<bool()> ready);
  bool advance_copies();
  bool advance_warps();
};

thread_local Block* block = nullptr;
std::atomic<uint64_t> blocks_started = 0;

Block& now() { return *block; }
Thread& self() { return *now().threads[now().running]; }

void leave() { emu::Fiber::switch_to(self().fiber, now().scheduler); }

void thread_main(void*) {
  try {
    now().kernel();
  } catch (const std::exception& e) {
    if (now().failure.empty()) now().failure = e.what();
  }
  self().done = true;
  leave();
}

void Block::wait_for(std::function<bool()> ready) {
  if (ready()) return;
  self().ready = std::move(ready);
  leave();
}

void complete(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  ++b.phase;
  b.pending = b.arrivals;
}

bool Block::advance_copies() {
  if (copies.empty() && acts.empty()) return false;
  auto i = static_cast<size_t>(random.below(static_cast<int64_t>(copies.size() + acts.size())));
  if (i >= copies.size()) {
    const auto act = acts.begin() + static_cast<int64_t>(i - copies.size());
    (*act)();
    acts.erase(act);
    return true;
  }
  const Copy copy = copies[i];
  copies.erase(copies.begin() + static_cast<int64_t>(i));
  copy.write(at_shared(copy.to, 1));
  Barrier& b = barriers.at(copy.barrier);
  b.bytes -= static_cast<int64_t>(copy.bytes);
  complete(b);
  return true;
}

// Some warps, in a random order, as far as each of their threads gets.
bool Block::advance_warps() {
  bool moved = false;
  std::vector<uint32_t> order(warps.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
  }
  const auto some = static_cast<size_t>(random.between(1, static_cast<int64_t>(order.size())));
  for (size_t w = 0; w < order.size(); ++w) {
    if (w >= some && moved) break;
    for (uint32_t lane = 0; lane < kLanes && failure.empty(); ++lane) {
      running = order[w] * kLanes + lane;
      Thread& t = self();
      if (t.done || (t.ready && !t.ready())) continue;
      t.ready = nullptr;
      t.looks = false;
      emu::Fiber::switch_to(scheduler, t.fiber);
      moved = moved || !t.looks;
    }
  }
  return moved;
}

void Block::start() {
  serial = ++blocks_started;
  for (size_t i = 0; i < kArena; ++i) arena[i] = grid.spoilt;
  for (auto& t : threads) {
    t->done = t->looks = false;
    t->ready = nullptr;
    t->fiber.start(thread_main, nullptr);
  }
  warps.assign(threads.size() / kLanes, {});
  barriers.clear();
  numbered.clear();
  copies.clear();
  acts.clear();
}

bool Block::done() const {
  return std::all_of(threads.begin(), threads.end(), [](const auto& t) { return t->done; });
}

// Until nothing moves, or for so many rounds; whether anything has moved.
bool Block::go_on(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    const bool copied = random.one_in(3) && advance_copies();
    const bool moved = advance_warps() || copied || advance_copies();
    if (!failure.empty()) throw std::runtime_error(failure);
    if (!moved) return i > 0;
  }
  return true;
}

constexpr const char* kAllWait = "every thread waits for another";

void run_in_order(const Grid& grid, const std::function<void()>& kernel) {
  Block b(grid, kernel, grid.seed);
  block = &b;
  try {
    for (b.index = 0; b.index < grid.blocks; ++b.index) {
      b.start();
      while (b.go_on(1 << 20)) {
      }
      if (!b.done()) throw std::runtime_error(kAllWait);
    }
  } catch (...) {
    block = nullptr;
    throw;
  }
  block = nullptr;
}

// A block in a thread of its own, which goes on when it is told to.
struct Player {
  std::binary_semaphore go{0}, stopped{0};
  int64_t rounds = 0;  // 0: leave
  bool moved = false, done = false;
  std::string failure;
  std::thread thread;

  Player(const Grid& grid, const std::function<void()>& kernel, uint32_t index)
      : thread([this, &grid, &kernel, index] { play(grid, kernel, index); }) {}
  ~Player() {
    rounds = 0;
    go.release();
    thread.join();
  }
  void play(const Grid& grid, const std::function<void()>& kernel, uint32_t index) {
    Block b(grid, kernel, grid.seed + index * uint64_t{0x9e3779b97f4a7c15});
    block = &b;
    b.index = index;
    b.start();
    for (go.acquire(); rounds > 0; go.acquire()) {
      try {
        moved = b.go_on(rounds);
        done = b.done();
      } catch (const std::exception& e) {
        failure = e.what();
      }
      stopped.release();
    }
    block = nullptr;
  }
};

void run_in_turns(const Grid& grid, const std::function<void()>& kernel) {
  Random random(grid.seed);
  std::vector<std::unique_ptr<Player>> players;
  for (uint32_t i = 0; i < grid.blocks; ++i) {
    players.push_back(std::make_unique<Player>(grid, kernel, i));
  }
  for (;;) {
    bool moved = false, done = true;
    for (size_t i = players.size() - 1; i > 0; --i) {
      std::swap(players[i],
                players[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
    for (const auto& p : players) {
      if (p->done) continue;
      p->rounds = random.between(1, 40);
      p->go.release();
      p->stopped.acquire();
      if (!p->failure.empty()) throw std::runtime_error(p->failure);
      moved = moved || p->moved;
      done = done && p->done;
    }
    if (done) return;
    if (!moved) throw std::runtime_error(kAllWait);
  }
}

}  // namespace

void run_grid(const Grid& grid, const std::function<void()>& kernel) {
  if (grid.threads % kLanes != 0 || grid.shared_bytes > kArena) {
    throw std::runtime_error("a grid that hardware does not take");
  }
  grid.together ? run_in_turns(grid, kernel) : run_in_order(grid, kernel);
}

uint32_t thread_index() { return now().running; }
uint32_t block_index() { return now().index; }
uint64_t block_serial() { return now().serial; }
uint32_t block_count() { return now().grid.blocks; }
unsigned char* dynamic_memory() { return arena; }

uint32_t shared_address_of(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - arena);
}
unsigned char* at_shared(uint32_t address, size_t alignment) {
  if (address % alignment != 0) block_fails("an address in shared memory is not aligned");
  const auto offset = static_cast<int32_t>(address);
  if (offset >= static_cast<int64_t>(now().grid.shared_bytes)) {
    // What the kernel declares itself lies elsewhere in the program's memory, far from here.
    if (offset < static_cast<int64_t>(kArena)) block_fails("beyond the dynamic shared memory");
  }
  return arena + offset;
}

const unsigned char* meet(const char* name, const void* value, size_t bytes) {
  if (bytes > kMostBytes) block_fails("too much for a collective");
  Warp& warp = now().warps[now().running / kLanes];
  const uint64_t turn = warp.turn;
  auto& slots = warp.slots[turn % 2];
  if (warp.met > 0 && std::strcmp(warp.name, name) != 0) {
    block_fails("lanes of a warp meet at different collectives");
  }
  warp.name = name;
  std::memcpy(&slots[now().running % kLanes * kMostBytes], value, bytes);
  if (++warp.met == kLanes) {
    warp.met = 0;
    ++warp.turn;
  } else {
    now().wait_for([&warp, turn] { return warp.turn > turn; });
  }
  return slots.data();
}

void barrier_init_at(uint32_t barrier, uint32_t arrivals) {
  now().barriers[barrier] = {arrivals, arrivals, 0, 0};
}
void barrier_arrive_at(uint32_t barrier, uint32_t bytes_to_come) {
  const auto found = now().barriers.find(barrier);
  if (found == now().barriers.end()) block_fails("an arrival at no barrier");
  Barrier& b = found->second;
  if (b.pending == 0) block_fails("more arrivals than a barrier waits for");
  b.bytes += bytes_to_come;
  --b.pending;
  complete(b);
}
void barrier_wait_at(uint32_t barrier, uint32_t parity) {
  const auto found = now().barriers.find(barrier);
  if (found == now().barriers.end()) block_fails("a wait at no barrier");
  Barrier& b = found->second;
  now().wait_for([&b, parity] { return (b.phase & 1) != parity; });
}

void numbered_arrive(uint32_t id, uint32_t threads) {
  Numbered& n = now().numbered[id];
  if (n.arrived > 0 && n.threads != threads) block_fails("a barrier of two sizes at once");
  n.threads = threads;
  if (++n.arrived == threads) {
    n.arrived = 0;
    ++n.generation;
  }
}
void numbered_wait(uint32_t id, uint32_t threads) {
  Numbered& n = now().numbered[id];
  const uint64_t generation = n.generation;
  numbered_arrive(id, threads);
  now().wait_for([&n, generation] { return n.generation > generation; });
}

void spoil_shared(uint32_t to, size_t bytes) {
  std::memset(at_shared(to, std::min<size_t>(bytes, 16)), now().grid.spoilt, bytes);
  at_shared(to + static_cast<uint32_t>(bytes) - 1, 1);
}

void copy_later(uint32_t to, size_t bytes, std::function<void(unsigned char*)> write,
                uint32_t barrier, size_t alignment) {
  at_shared(to, alignment);
  spoil_shared(to, bytes);
  now().copies.push_back({to, bytes, std::move(write), barrier});
}

void happen_later(std::function<void()> act) { now().acts.push_back(std::move(act)); }
void wait_until(std::function<bool()> so) { now().wait_for(std::move(so)); }

void look_again() {
  // Ready at once, in a later round.
  self().looks = true;
  leave();
}

void block_fails(const char* what) { throw std::runtime_error(what); }

}  // namespace moeblas::test
