/* Reads and writes the head of each form of a record at every address of a word. Built with -fsanitize=alignment, it ends
 * at the first access for which the compiler took the address for a multiple of more than 1. */
#include <stdio.h>
#include <string.h>

#include "layout.h"

static uint64_t fill(unsigned char *at)
{
    replog_long *ledger = (replog_long *)at;
    replog_counted *counted = (replog_counted *)at;
    memset(at, 0, REPLOG_LONG_HEADER);
    ((replog_record *)at)->length = 1;
    ((replog_record *)at)->time = 2;
    counted->head.entry_delta = 4;
    counted->count = 8;
    ledger->lac = 16;
    ledger->ledger_messages = 32;
    return ((replog_record *)at)->length + (uint64_t)ledger->head.time + ((replog_short *)at)->entry_delta + counted->count
         + (uint64_t)ledger->lac + ledger->ledger_messages;
}

int main(void)
{
    static _Alignas(8) unsigned char memory[8 + REPLOG_LONG_HEADER];
    int at;
    for (at = 0; at < 8; at++)
        if (fill(memory + at) != 63)
            return 1;
    puts("aligned to 1");
    return 0;
}
