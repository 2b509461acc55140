#include "block/block.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "block/state.h"

namespace moeblas::test {
namespace running {
namespace {

constexpr size_t kArena = 232448;

// Addresses in a cluster: a block's own are offsets from its memory, and what kernels declare lies
// within some MB of that.
constexpr uint32_t kInCluster = 0x40000000, kRankShift = 20;
static_assert(kArena <= 1u << kRankShift);

alignas(1024) thread_local unsigned char arena[kArena];

thread_local Block* block = nullptr;
std::atomic<uint64_t> blocks_started = 0;

Block& now() { return *block; }
Thread& self() { return *now().threads[now().running]; }

void leave() { emu::Fiber::switch_to(self().fiber, now().scheduler); }

void complete(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  ++b.phase;
  b.pending = b.arrivals;
}

void thread_main(void*) {
  try {
    now().kernel();
  } catch (const std::exception& e) {
    if (now().failure.empty()) now().failure = e.what();
  }
  now().end_thread();
  leave();
}

}  // namespace

void Block::end_thread() {
  threads[running]->done = true;
  ++ended;
  if (cluster != nullptr) cluster->leave(threads[running]->met);
  if (done() && !copies.empty() && failure.empty()) {
    failure = "a block ends before what is copied to it is there";
  }
}

unsigned char* Block::at(uint32_t address, size_t alignment) const {
  if (address % alignment != 0) block_fails("an address in shared memory is not aligned");
  if (address >= kInCluster && address < 2 * kInCluster) {
    block_fails("a cluster's address where a block's own is wanted");
  }
  const auto offset = static_cast<int32_t>(address);
  if (offset >= static_cast<int64_t>(grid.shared_bytes)) {
    // What the kernel declares itself lies elsewhere in the program's memory, far from here.
    if (offset < static_cast<int64_t>(kArena)) block_fails("beyond the dynamic shared memory");
  }
  return memory + offset;
}

Barrier& Block::barrier_at(uint32_t address, const char* none) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) block_fails(none);
  return found->second;
}

void Block::wait_for(std::function<bool()> ready) {
  if (ready()) return;
  self().ready = std::move(ready);
  leave();
}

void Block::arrive(uint32_t barrier, uint32_t bytes_to_come) {
  if (done()) block_fails("an arrival in a block that has ended");
  Barrier& b = barrier_at(barrier, "an arrival at no barrier");
  if (b.pending == 0) block_fails("more arrivals than a barrier waits for");
  b.bytes += bytes_to_come;
  --b.pending;
  complete(b);
}

void Block::spoil(uint32_t to, size_t bytes) const {
  std::memset(at(to, std::min<size_t>(bytes, 16)), grid.spoilt, bytes);
  at(to + static_cast<uint32_t>(bytes) - 1, 1);
}

uint64_t Block::copy_later(Copy copy, size_t alignment) {
  if (done()) block_fails("a copy to a block that has ended");
  at(copy.to, alignment);
  spoil(copy.to, copy.bytes);
  copy.number = ++copies_begun;
  copies.push_back(std::move(copy));
  return copies_begun;
}

// A quarter of the barriers: a wait that is missing shows where nothing else takes as long.
bool Block::is_slow(const Copy& copy) const {
  return Random(slow + copy.barriers.front()).one_in(4);
}

bool Block::advance_copies(bool slow_ones) {
  if (copies.empty() && acts.empty()) return false;
  constexpr int kTries = 8;
  size_t i = 0;
  for (int left = kTries; left > 0; --left) {
    i = static_cast<size_t>(random.below(static_cast<int64_t>(copies.size() + acts.size())));
    if (i >= copies.size() || !is_slow(copies[i])) break;
    if (left == 1 && !slow_ones) return false;
  }
  if (i >= copies.size()) {
    const auto act = acts.begin() + static_cast<int64_t>(i - copies.size());
    (*act)();
    acts.erase(act);
    return true;
  }
  std::swap(copies[i], copies.back());
  const Copy copy = std::move(copies.back());
  copies.pop_back();
  copy.write(at(copy.to, 1));
  for (const uint32_t barrier : copy.barriers) {
    Barrier& b = barrier_at(barrier, "a copy reports at no barrier");
    b.bytes -= static_cast<int64_t>(copy.bytes);
    complete(b);
  }
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
    t->met = 0;
    t->ready = nullptr;
    t->fiber.start(thread_main, nullptr);
  }
  warps.assign(threads.size() / kLanes, {});
  barriers.clear();
  numbered.clear();
  copies.clear();
  acts.clear();
  ended = 0;
  copies_late = random.pick({2, 4, 20, 1000});
  slow = random.next();
}

// Until nothing moves, or for so many rounds; whether anything has moved.
bool Block::go_on(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    const bool copied = random.one_in(copies_late) && advance_copies(false);
    const bool moved = advance_warps() || copied || advance_copies(true);
    if (!failure.empty()) throw std::runtime_error(failure);
    if (!moved) return i > 0;
  }
  return true;
}

namespace {

constexpr const char* kAllWait = "every thread waits for another";

void run_in_order(const Grid& grid, const std::function<void()>& kernel) {
  Block b(grid, kernel, arena, grid.seed);
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

// A thread for one block after the other, which go on when they are told to.
struct Player {
  enum class Say { begin, go_on, leave };

  const Grid& grid;
  const std::function<void()>& kernel;
  const uint64_t seed;
  Say said = Say::leave;
  uint32_t index = 0;
  int64_t rounds = 0;
  bool moved = false, done = false;
  std::string failure;
  Block* block = nullptr;
  std::binary_semaphore heard{0}, did{0};
  std::thread thread;

  Player(const Grid& g, const std::function<void()>& k, uint64_t s)
      : grid(g), kernel(k), seed(s), thread([this] { play(); }) {
    did.acquire();
  }
  ~Player() {
    said = Say::leave;
    heard.release();
    thread.join();
  }
  void say(Say what) {
    said = what;
    heard.release();
    did.acquire();
    if (!failure.empty()) throw std::runtime_error(failure);
  }
  void play() {
    Block b(grid, kernel, arena, seed);
    running::block = block = &b;
    did.release();
    for (heard.acquire(); said != Say::leave; heard.acquire()) {
      try {
        if (said == Say::begin) {
          b.index = index;
          b.start();
        } else {
          moved = b.go_on(rounds);
        }
        done = b.done();
      } catch (const std::exception& e) {
        failure = e.what();
      }
      did.release();
    }
    running::block = nullptr;
  }
};

using Players = std::vector<std::unique_ptr<Player>>;

void play_to_end(Players& players, Random& random) {
  for (;;) {
    bool moved = false, done = true;
    for (size_t i = players.size() - 1; i > 0; --i) {
      std::swap(players[i],
                players[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
    for (const auto& p : players) {
      if (p->done) continue;
      p->rounds = random.between(1, 40);
      p->say(Player::Say::go_on);
      moved = moved || p->moved;
      done = done && p->done;
    }
    if (done) return;
    if (!moved) throw std::runtime_error(kAllWait);
  }
}

// Blocks that run together: those of a cluster, or all.
void run_in_turns(const Grid& grid, const std::function<void()>& kernel) {
  Random random(grid.seed);
  Players players;
  const uint32_t together = grid.together ? grid.blocks : grid.cluster;
  for (uint32_t i = 0; i < together; ++i) {
    players.push_back(
        std::make_unique<Player>(grid, kernel, grid.seed + i * uint64_t{0x9e3779b97f4a7c15}));
  }
  for (uint32_t first = 0; first < grid.blocks; first += together) {
    std::vector<Cluster> clusters(together / grid.cluster);
    for (uint32_t i = 0; i < together; ++i) {
      Player& p = *players[i];
      Cluster& cluster = clusters[i / grid.cluster];
      cluster.blocks.push_back(p.block);
      cluster.threads += grid.threads;
      p.block->cluster = &cluster;
      p.index = first + i;
      p.say(Player::Say::begin);
    }
    play_to_end(players, random);
  }
}

}  // namespace
}  // namespace running

using namespace running;

void run_grid(const Grid& grid, const std::function<void()>& kernel) {
  if (grid.threads % kLanes != 0 || grid.shared_bytes > kArena || grid.cluster == 0 ||
      grid.blocks % grid.cluster != 0) {
    throw std::runtime_error("a grid that hardware does not take");
  }
  grid.together || grid.cluster > 1 ? run_in_turns(grid, kernel) : run_in_order(grid, kernel);
}

uint32_t thread_index() { return now().running; }
uint32_t block_index() { return now().index; }
uint64_t block_serial() { return now().serial; }
uint32_t block_count() { return now().grid.blocks; }
uint32_t block_threads() { return now().grid.threads; }
unsigned char* dynamic_memory() { return arena; }

uint32_t shared_address_of(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - arena);
}
unsigned char* at_shared(uint32_t address, size_t alignment) {
  return now().at(address, alignment);
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
  now().arrive(barrier, bytes_to_come);
}
void barrier_wait_at(uint32_t barrier, uint32_t parity) {
  Barrier& b = now().barrier_at(barrier, "a wait at no barrier");
  now().wait_for([&b, parity] { return (b.phase & 1) != parity; });
}

bool barrier_passed_at(uint32_t barrier, uint32_t parity) {
  return (now().barrier_at(barrier, "a look at no barrier").phase & 1) != parity;
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

void spoil_shared(uint32_t to, size_t bytes) { now().spoil(to, bytes); }

uint64_t copy_later(uint32_t to, size_t bytes, std::function<void(unsigned char*)> write,
                    uint32_t barrier, size_t alignment) {
  return now().copy_later({to, bytes, std::move(write), {barrier}}, alignment);
}
size_t report_also(uint64_t copy, uint32_t barrier) {
  auto& copies = now().copies;
  const auto found =
      std::find_if(copies.rbegin(), copies.rend(), [&](const Copy& c) { return c.number == copy; });
  if (found == copies.rend()) return 0;
  found->barriers.push_back(barrier);
  return found->bytes;
}

void happen_later(std::function<void()> act) { now().acts.push_back(std::move(act)); }
void wait_until(std::function<bool()> so) { now().wait_for(std::move(so)); }

void look_again() {
  // Ready at once, in a later round.
  self().looks = true;
  leave();
}

// ---- Clusters

namespace {

// The block of a cluster's address, which becomes that block's own.
Block& block_of(uint32_t& address) {
  const uint32_t rank = (address - kInCluster) >> kRankShift;
  if (address < kInCluster || rank >= now().grid.cluster) {
    block_fails("an address that is not a cluster's");
  }
  address &= (1u << kRankShift) - 1;
  return *now().cluster->blocks[rank];
}

}  // namespace

uint32_t cluster_rank() { return now().index % now().grid.cluster; }

uint32_t cluster_address_of(uint32_t address, uint32_t rank) {
  if (address >= kArena) block_fails("what lies outside the dynamic shared memory, in a cluster");
  if (rank >= now().grid.cluster) block_fails("no block of the cluster");
  return kInCluster | rank << kRankShift | address;
}

void cluster_arrive() {
  Cluster* const all = now().cluster;
  if (all == nullptr) return;
  if (self().met != all->generation) block_fails("a second arrival at a cluster's barrier");
  ++self().met;
  all->arrive(1);
}
void cluster_wait() {
  const Cluster* const all = now().cluster;
  if (all == nullptr) return;
  now().wait_for([all, met = self().met] { return all->generation >= met; });
}

void barrier_arrive_in_cluster(uint32_t barrier, uint32_t bytes_to_come) {
  Block& there = block_of(barrier);
  there.arrive(barrier, bytes_to_come);
}

void copy_later_in_cluster(uint32_t to, size_t bytes, std::function<void(unsigned char*)> write,
                           uint32_t barrier, size_t alignment) {
  Block& there = block_of(to);
  if (&block_of(barrier) != &there) block_fails("a copy reports in another block");
  there.copy_later({to, bytes, std::move(write), {barrier}}, alignment);
}

void block_fails(const char* what) { throw std::runtime_error(what); }

}  // namespace moeblas::test
