package pyreplog;

import java.util.Arrays;
import java.util.Enumeration;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Appends to one ledger, `window` entries on their way at a time, and says as JSON how fast that was.
 *
 * Arguments: metadata URI, ensemble, write quorum, ack quorum, entry size, window, seconds of warm-up, seconds.
 */
public final class Load {
    private static final int SAMPLES = 1 << 22;
    private static final int PAGE = 1000;

    private final LedgerHandle ledger;
    private final byte[] value;
    private final int window;
    private final Semaphore room;
    private final long[] taken = new long[SAMPLES];
    private final AtomicReference<Integer> failure = new AtomicReference<>();
    private int samples; // written by the client's one completion thread of this ledger

    private Load(LedgerHandle ledger, byte[] value, int window) {
        this.ledger = ledger;
        this.value = value;
        this.window = window;
        this.room = new Semaphore(window);
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(true); // the faster one
        configuration.setThrottleValue(0); // by default it adds no more than 5000 entries a second
        int[] numbers = Arrays.stream(arguments).skip(1).mapToInt(Integer::parseInt).toArray();
        byte[] value = new byte[numbers[3]];
        new Random(numbers[3]).nextBytes(value);
        try (BookKeeper client = new BookKeeper(configuration)) {
            LedgerHandle ledger =
                    client.createLedger(numbers[0], numbers[1], numbers[2], DigestType.CRC32C, new byte[0]);
            Load load = new Load(ledger, value, numbers[4]);
            long before = load.append(numbers[5]);
            long begin = System.nanoTime();
            long count = load.append(numbers[6]);
            double rate = count * 1e9 / (System.nanoTime() - begin);
            int read = load.readBack(before + count);
            System.out.printf(
                    "{\"rate\": %.1f, \"p50_ns\": %d, \"p99_ns\": %d, \"read_back\": %d}%n",
                    rate, load.quantile(0.5), load.quantile(0.99), read);
            ledger.close();
        }
    }

    /** Appends for so many seconds, and waits for all of it; how many entries that were. */
    private long append(int seconds) throws Exception {
        samples = 0;
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        long count = 0;
        for (long begin = System.nanoTime(); begin < end; begin = System.nanoTime()) {
            room.acquire();
            final long sent = System.nanoTime();
            ledger.asyncAddEntry(value, (code, handle, entry, context) -> {
                if (code != BKException.Code.OK) {
                    failure.compareAndSet(null, code);
                }
                taken[samples++ & (SAMPLES - 1)] = System.nanoTime() - sent;
                room.release();
            }, null);
            count++;
            if (failure.get() != null) {
                throw BKException.create(failure.get());
            }
        }
        room.acquire(window);
        room.release(window);
        return count;
    }

    private long quantile(double share) {
        long[] sorted = Arrays.copyOf(taken, Math.min(samples, SAMPLES));
        Arrays.sort(sorted);
        return sorted[(int) (share * (sorted.length - 1))];
    }

    /** Compares the last entries with what was written; how many. */
    private int readBack(long count) throws Exception {
        long first = Math.max(count - PAGE, 0);
        int found = 0;
        Enumeration<LedgerEntry> entries = ledger.readEntries(first, count - 1);
        while (entries.hasMoreElements()) {
            if (!Arrays.equals(entries.nextElement().getEntry(), value)) {
                throw new IllegalStateException("an entry is not what was written");
            }
            found++;
        }
        return found;
    }
}
