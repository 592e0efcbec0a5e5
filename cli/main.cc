#include <sirdar/sirdar.hpp>

int main() { return 0; }
