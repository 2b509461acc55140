// A child forked while other threads exist is what these tests are about; ThreadSanitizer ends such
// a child as soon as it starts a thread, unless told otherwise.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
