import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Asks the assignors of Kafka's clients. A line is "strategy topics members": topics as "a:xy/x,b:" (name, and the
 * racks of each partition's replicas, one letter each, none for a replica without one), members
 * as "m1/instance=HEX|m2/=HEX", where HEX is the subscription of JoinGroup. The answer: "m1=a.0,a.1|m2=...".
 *
 * Or it is "say strategy generation topics partitions", answered with the subscription in HEX of a member that had the partitions.
 */
public class KafkaClientAssignors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            out.append(parts[0].equals("say") ? say(parts) : assign(parts[0], parts[1], parts[2])).append('\n');
        }
        System.out.print(out);
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    @SuppressWarnings("removal")
    private static String say(String[] parts) {
        ConsumerPartitionAssignor assignor = assignor(parts[1]);
        List<TopicPartition> had = new ArrayList<>();
        for (String partition : parts[4].split(",")) {
            had.add(new TopicPartition(partition.split("\\.")[0], Integer.parseInt(partition.split("\\.")[1])));
        }
        int generation = Integer.parseInt(parts[2]);
        assignor.onAssignment(new Assignment(had), new ConsumerGroupMetadata("g", generation, "m", Optional.empty()));
        List<String> topics = List.of(parts[3].split(","));
        ByteBuffer data = assignor.subscriptionUserData(Set.copyOf(topics));
        List<TopicPartition> owned = parts[1].equals("cooperative-sticky") ? had : List.of();
        ByteBuffer told = ConsumerProtocol.serializeSubscription(
            new Subscription(topics, data, owned, generation, Optional.empty()));
        byte[] bytes = new byte[told.remaining()];
        told.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static String assign(String strategy, String topics, String members) {
        Map<String, Node> nodes = new TreeMap<>();
        nodes.put("", new Node(1, "h", 1));
        List<PartitionInfo> partitions = new ArrayList<>();
        for (String part : topics.split(",")) {
            String[] racks = part.split(":", -1)[1].split("/", -1);
            for (int index = 0; index < racks.length; index++) {
                Node[] replicas = racks[index].chars().mapToObj(Character::toString)
                    .map(rack -> nodes.computeIfAbsent(rack, key -> new Node(key.charAt(0), "h", 1, key))).toArray(Node[]::new);
                Node[] some = replicas.length == 0 ? new Node[] {nodes.get("")} : replicas;
                partitions.add(new PartitionInfo(part.split(":")[0], index, some[0], some, some));
            }
        }
        Cluster cluster = new Cluster("c", nodes.values(), partitions, Set.of(), Set.of());
        Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        for (String member : members.split("\\|")) {
            String[] name = member.split("=")[0].split("/", -1);
            Subscription told =
                ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(HexFormat.of().parseHex(member.split("=")[1])));
            told.setGroupInstanceId(name[1].isEmpty() ? Optional.empty() : Optional.of(name[1]));
            subscriptions.put(name[0], told);
        }
        Map<String, TreeSet<String>> result = new TreeMap<>();
        assignor(strategy).assign(cluster, new GroupSubscription(subscriptions)).groupAssignment().forEach(
            (name, given) -> given.partitions().forEach(place -> result.computeIfAbsent(name, key -> new TreeSet<>()).add(
                place.topic() + "." + place.partition())));
        return result.entrySet().stream().map(entry -> entry.getKey() + "=" + String.join(",", entry.getValue()))
            .collect(Collectors.joining("|"));
    }
}
