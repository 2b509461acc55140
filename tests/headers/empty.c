/* Public headers are compiled in front of this. */
struct empty_translation_unit;
