import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyQueryMetadata;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.ReadOnlyWindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/**
 * Counts the words of the topic "sentences": in total (store "counts", topic "counted") and by windows of an hour (store "windows").
 * Arguments: bootstrap servers, application id, directory of the state, standby replicas, group protocol, address of this instance (which only the metadata names).
 * Reads commands from the standard input and answers each with a line that begins with "= ": "state", "get WORD", "window WORD" (the sum over the windows), "owners WORD" (the addresses
 * of the instances with the active task and with standby tasks), "close".
 */
public class StreamsApplications {
    private static final Duration HOUR = Duration.ofHours(1);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, arguments[3]);
        settings.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, arguments[4]);
        settings.put(StreamsConfig.APPLICATION_SERVER_CONFIG, arguments[5]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, arguments.length > 6 ? arguments[6] : "1");
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "1");
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "200");
        settings.put(StreamsConfig.PROBING_REBALANCE_INTERVAL_MS_CONFIG, "60000");
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "6000");
        settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "500");

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder
            .stream("sentences", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMap((key, sentence) -> Arrays.stream(sentence.split(" ")).map(word -> KeyValue.pair(word, word)).toList());
        words.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .to("counted", Produced.with(Serdes.String(), Serdes.Long()));
        words.groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(HOUR))
            .count(Materialized.as("windows"));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null && !line.equals("close"); ) {
            System.out.println("= " + answer(streams, line.split(" ")));
        }
        streams.close(Duration.ofSeconds(20));
        System.out.println("= closed");
    }

    private static String answer(KafkaStreams streams, String[] command) {
        try {
            if (command[0].equals("state")) return streams.state().toString();
            if (command[0].equals("get")) {
                ReadOnlyKeyValueStore<String, Long> counts = streams.store(
                    StoreQueryParameters.<ReadOnlyKeyValueStore<String, Long>>fromNameAndType("counts", QueryableStoreTypes.keyValueStore())
                        .enableStaleStores());
                return String.valueOf(counts.get(command[1]));
            }
            if (command[0].equals("owners")) {
                KeyQueryMetadata owners = streams.queryMetadataForKey("counts", command[1], Serdes.String().serializer());
                return owners.activeHost() + " " + owners.standbyHosts();
            }
            ReadOnlyWindowStore<String, Long> windows = streams.store(
                StoreQueryParameters.fromNameAndType("windows", QueryableStoreTypes.<String, Long>windowStore()));
            long sum = 0;
            try (WindowStoreIterator<Long> found = windows.fetch(command[1], Instant.EPOCH, Instant.now().plus(HOUR))) {
                while (found.hasNext()) sum += found.next().value;
            }
            return String.valueOf(sum);
        } catch (RuntimeException error) {
            return "error " + error.getClass().getSimpleName() + " " + String.valueOf(error.getMessage()).replace('\n', ' ');
        }
    }
}
