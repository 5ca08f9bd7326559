package pyreplog;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * Fills ledgers, keeps some open, and adds to one at a fixed rate.
 *
 * Arguments: metadata URI, ensemble, write quorum, ack quorum, ledgers, entries of each, entry size.
 * Lines of standard input: "idle COUNT", "begin", "end", "fenced", "held", "read BOOKIE". Each is answered with a line
 * of JSON.
 */
public final class Recover {
    private static final int WINDOW = 64;
    private static final int ADDS_PER_S = 200;

    private final BookKeeper client;
    private final ClientConfiguration configuration;
    private final int[] quorums;
    private final byte[] value;
    private final List<Long> closed = new ArrayList<>();
    private final List<LedgerHandle> open = new ArrayList<>();
    private Adds adds;

    private Recover(BookKeeper client, ClientConfiguration configuration, int[] quorums, int size) {
        this.client = client;
        this.configuration = configuration;
        this.quorums = quorums;
        this.value = new byte[size];
        new Random(size).nextBytes(value);
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setThrottleValue(0);
        int[] numbers = Arrays.stream(arguments).skip(1).mapToInt(Integer::parseInt).toArray();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (BookKeeper client = new BookKeeper(configuration)) {
            Recover recover = new Recover(client, configuration, Arrays.copyOf(numbers, 3), numbers[5]);
            recover.fill(numbers[3], numbers[4]);
            System.out.printf("{\"ledgers\": %d}%n", recover.closed.size());
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(recover.answer(line.split(" ")));
            }
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "idle":
                return idle(Integer.parseInt(words[1]));
            case "begin":
                adds = new Adds();
                return "{\"began\": true}";
            case "end":
                return adds.end();
            case "fenced":
                return String.format("{\"fenced\": %d}", fenced());
            case "read":
                return read(BookieId.parse(words[1]));
            default:
                return String.format("{\"held\": %d}", held());
        }
    }

    private LedgerHandle create() throws Exception {
        return client.createLedger(quorums[0], quorums[1], quorums[2], DigestType.CRC32C, new byte[0]);
    }

    /** Makes closed ledgers, several at a time. */
    private void fill(int ledgers, int entries) throws Exception {
        Semaphore room = new Semaphore(WINDOW);
        AtomicReference<Integer> failure = new AtomicReference<>();
        for (int number = 0; number < ledgers; number++) {
            room.acquire();
            client.asyncCreateLedger(quorums[0], quorums[1], quorums[2], DigestType.CRC32C, new byte[0],
                (code, handle, context) -> {
                    if (code != BKException.Code.OK) {
                        failure.compareAndSet(null, code);
                        room.release();
                        return;
                    }
                    synchronized (closed) {
                        closed.add(handle.getId());
                    }
                    AtomicInteger left = new AtomicInteger(entries);
                    for (int entry = 0; entry < entries; entry++) {
                        handle.asyncAddEntry(value, (added, same, id, nothing) -> {
                            if (added != BKException.Code.OK) {
                                failure.compareAndSet(null, added);
                            }
                            if (left.decrementAndGet() == 0) {
                                handle.asyncClose((done, it, none) -> room.release(), null);
                            }
                        }, null);
                    }
                }, null, null);
            if (failure.get() != null) {
                throw BKException.create(failure.get());
            }
        }
        room.acquire(WINDOW);
    }

    /** Makes ledgers that stay open with an entry each. */
    private String idle(int count) throws Exception {
        for (int number = 0; number < count; number++) {
            LedgerHandle handle = create();
            handle.addEntry(value);
            open.add(handle);
        }
        return String.format("{\"idle\": %d}", open.size());
    }

    /** Entries of closed ledgers that the bookies which run hold, copies counted. */
    private long held() throws Exception {
        AtomicLong total = new AtomicLong();
        Semaphore room = new Semaphore(WINDOW);
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client, configuration)) {
            for (BookieId bookie : admin.getAvailableBookies()) {
                for (Long ledger : closed) {
                    room.acquire();
                    admin.asyncGetListOfEntriesOfLedger(bookie, ledger).whenComplete((ids, unknown) -> {
                        if (unknown == null) { // else the bookie has nothing of it
                            total.addAndGet(Math.max(ids.getTotalNumOfAvailableEntries(), 0));
                        }
                        room.release();
                    });
                }
            }
            room.acquire(WINDOW);
        }
        return total.get();
    }

    /** Reads each entry of the closed ledgers that name a bookie; how many are right, and how many cannot be read. */
    private String read(BookieId bookie) throws Exception {
        int read = 0;
        int bad = 0;
        for (Long ledger : closed) {
            LedgerHandle handle = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, new byte[0]);
            boolean isNamed = handle.getLedgerMetadata().getAllEnsembles().values().stream()
                .anyMatch(ensemble -> ensemble.contains(bookie));
            for (long entry = 0; isNamed && entry <= handle.getLastAddConfirmed(); entry++) {
                try {
                    read += Arrays.equals(handle.readEntries(entry, entry).nextElement().getEntry(), value) ? 1 : 0;
                } catch (BKException error) {
                    bad++;
                }
            }
            handle.close();
        }
        return String.format("{\"read\": %d, \"bad\": %d}", read, bad);
    }

    /** How many of the open ledgers no longer take entries of their writers. */
    private int fenced() {
        int count = 0;
        for (LedgerHandle handle : open) {
            try {
                handle.addEntry(value);
            } catch (Exception error) {
                count++;
            }
        }
        return count;
    }

    /** Adds to a ledger of its own, one at a time at a fixed rate. */
    private final class Adds {
        private final List<Long> taken = new ArrayList<>();
        private final LedgerHandle ledger = create();
        private final Thread thread = new Thread(this::run);
        private int failed;
        private volatile boolean over;

        private Adds() throws Exception {
            thread.start();
        }

        private void run() {
            long next = System.nanoTime();
            while (!over) {
                long begin = System.nanoTime();
                if (begin < next) {
                    java.util.concurrent.locks.LockSupport.parkNanos(next - begin);
                    continue;
                }
                next = Math.max(next + 1_000_000_000L / ADDS_PER_S, begin - 1_000_000_000L);
                try {
                    ledger.addEntry(value);
                } catch (Exception error) {
                    failed++;
                }
                taken.add(System.nanoTime() - begin);
            }
        }

        private String end() throws Exception {
            over = true;
            thread.join();
            ledger.close();
            client.deleteLedger(ledger.getId()); // its entries are not among those that are counted
            long[] sorted = taken.stream().mapToLong(Long::longValue).sorted().toArray();
            long p99 = sorted.length == 0 ? 0 : sorted[sorted.length * 99 / 100];
            return String.format("{\"p99_ns\": %d, \"adds\": %d, \"failed\": %d}", p99, sorted.length, failed);
        }
    }
}
